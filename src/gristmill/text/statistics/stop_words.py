"""Stop words of 25 languages: articles, pronouns, prepositions, conjunctions, forms of to be and to have."""

from __future__ import annotations

_WORDS = {
    "ar": (
        "في من على إلى عن أن إن كان كانت هذا هذه ذلك التي الذي ما لا لم لن قد مع أو ثم هو هي كل بعد قبل بين حتى عند لكن"
    ),
    "bg": (
        "и в на за от с не да се че е са по като но или който която това този тя той аз ние до при към след още само"
    ),
    "cs": (
        "a v na se je že s z do to i o k ve pro za by ale si po jako jsou byl které který od jsem má u jen až při nebo"
    ),
    "da": (
        "og i at det en den til er som på de med han af for ikke der var mig sig men et har om vi min havde hun "
        "nu over fra"
    ),
    "de": (
        "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an werden aus "
        "er hat dass sie nach wird bei einer um am sind noch wie einem über einen so zum war haben nur oder aber "
        "vor zur bis mehr durch man sein wurde wir ich"
    ),
    "el": (
        "και το η ο να του τη της την με σε που για τα από οι στο στη στην δεν είναι θα τον των ότι μια ένα αλλά "
        "ή ως κατά"
    ),
    "en": (
        "the of and to a in is that it was for on are as with his they at be this from have or by one had not but "
        "what all were we when your can said there use an each which she do how their if will up other about out "
        "many then them these so some her would him into has more i you he its been who my me our us no than only "
        "also any such may most"
    ),
    "es": (
        "de la que el en y a los del se las por un para con no una su al lo como más pero sus le ya o este sí "
        "porque esta entre cuando muy sin sobre también me hasta hay donde quien desde todo nos durante todos uno "
        "les ni contra otros es son fue ha era"
    ),
    "fa": (
        "و در به از که این را با است برای آن یک خود تا بر یا هم می شود شد بود کرد ها اما ما من او چه هر نیز دو پس اگر"
    ),
    "fi": (
        "ja on ei se että hän oli ole mutta joka myös kun niin ovat mitä tai jos vain kuin sen ne minä olen jo "
        "nyt sitä siitä"
    ),
    "fr": (
        "de la le et les des en un une du que est pour qui dans a par plus pas au sur ne se ce il sont avec ou "
        "son sa ses aux mais comme on nous vous elle leur cette été ont était fait être je tu si même bien sans "
        "entre aussi"
    ),
    "he": ("של את על לא הוא היא זה זו אל כי גם עם אם אני אתה הם היה היו מה כל יותר רק או אבל בין אחרי לפני כמו יש אין"),
    "hi": ("के है में की से और को का यह पर कि एक हैं ने नहीं भी था थी थे लिए हो तो कर ही वह इस जो या तक अपने रहा किया"),
    "hu": (
        "a az és hogy nem is egy ez de volt csak meg már mint még el ha vagy azt van kell sem azonban után között "
        "ki be lesz"
    ),
    "id": (
        "yang dan di itu dengan untuk tidak ini dari dalam akan pada juga saya ke karena ada oleh kita bisa "
        "adalah atau lebih"
    ),
    "it": (
        "di e che la il un a per in una non sono è del con i le si da lo della ha come ma al più dei nel alla gli "
        "o anche se questo questa delle ed era suo sua dal dalla nella ci mi su tra essere stato"
    ),
    "ja": (
        "は が の に を で と も へ や から まで より "
        "です ます する した して いる ある ない これ それ この その こと もの"
    ),
    "nl": (
        "de en van het een in is dat op te zijn met voor niet aan er om ook als dan maar bij nog uit door naar "
        "heeft ze hij of tot je over was deze worden die wordt had kan we geen"
    ),
    "pl": (
        "i w na z do nie się to że jest o jak po co ale tak za od czy przez dla jego są tym był tylko ich być "
        "może przed"
    ),
    "pt": (
        "de a o que e do da em um para é com não uma os no se na por mais as dos como mas foi ao ele das tem à "
        "seu sua ou ser quando muito há nos já está eu também só pelo pela até isso ela entre"
    ),
    "ro": (
        "și de la în a cu pe că nu este o un din care mai pentru sunt ce se au fost sau prin dar ca al lui ei le "
        "fi fără după"
    ),
    "ru": (
        "и в не на я что он с как это по но они мы она из за то все у вы к его от так же бы о для был была было "
        "были или до ее их при уже только если есть быть"
    ),
    "sv": (
        "och i att det som en på är av för med till den har de inte om ett han men var jag sig från vi så kan hon "
        "där nu eller"
    ),
    "tr": (
        "ve bir bu da de için ile çok olarak daha gibi ne o ama en kadar var ki olan sonra her ben mi değil ya "
        "ise veya hem"
    ),
    "uk": (
        "і в на що з не у та до як за це по але від про для він вона вони ми ви я є був була було бути або так "
        "коли якщо його"
    ),
}

STOP_WORDS = {lang: frozenset(words.split()) for lang, words in _WORDS.items()}
