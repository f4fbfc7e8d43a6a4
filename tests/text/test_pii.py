"""Personal data: what is found, and above all what is not."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.core.stage import take_counts
from gristmill.text import JsonlReader, JsonlWriter, PiiFilter, PiiRedactor, RedactPii
from gristmill.text.pii.identifiers import passes_luhn, passes_mod97
from gristmill.text.pii.phone_numbers import PHONE_FORMATS

TOKEN = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PRIVATE = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA7\n" * 3 + "-----END RSA PRIVATE KEY-----"
RANDOM = "tGzv3JOkF0XG5Qx2TlKWIA9b"

# entity, text, what is left of it when it is redacted
FOUND = [
    ("email", "mail jo.e+x@mail.example.co.uk.", "mail [EMAIL]."),
    ("email", "<a@b.io>, A_B%c@d-e.org!", "<[EMAIL]>, [EMAIL]!"),
    ("email", "jürgen@müller.de или иван@почта.рф", "[EMAIL] или [EMAIL]"),
    ("email", "o'neil@x.com", "[EMAIL]"),
    ("email", "请联系john@example.com获取更多信息。", "请联系[EMAIL]获取更多信息。"),
    ("email", "メールはtaro.y@example.co.jpまで", "メールは[EMAIL]まで"),
    ("email", "아이디hong@example.com입니다", "아이디[EMAIL]입니다"),
    ("email", "ติดต่อsomchai@example.comได้", "ติดต่อ[EMAIL]ได้"),
    ("email", "ivan@example.ruсегодня, почтаivan@example.ru", "[EMAIL]сегодня, почта[EMAIL]"),
    ("email", "jürgen@example.com获取 иван@example.com", "[EMAIL]获取 [EMAIL]"),
    ("email", "_john@example.com_, 'john@example.com'", "_[EMAIL]_, '[EMAIL]'"),
    ("ip", "from 8.8.8.8, then 151.101.1.140:443", "from [IP], then [IP]:443"),
    ("ip", "(93.184.216.34)", "([IP])"),
    ("ip", "2606:4700:4700::1111 and [2a00:1450:4001:82a::200e]", "[IP] and [[IP]]"),
    ("ip", "IP:8.8.8.8,9.9.9.9, 8.8.8.8-9.9.9.9", "IP:[IP],[IP], [IP]-[IP]"),
    ("ip", "地址是2606:4700:4700::1111和8.8.8.8。", "地址是[IP]和[IP]。"),
    ("credit_card", "4111 1111 1111 1111", "[CREDIT_CARD]"),
    ("credit_card", "4111 1111 1111 1111 12/25, 3782-822463-10005 1/27", "[CREDIT_CARD] 12/25, [CREDIT_CARD] 1/27"),
    ("credit_card", "4111-1111-1111-1111-123", "[CREDIT_CARD]-123"),
    ("credit_card", "card: 4111111111111111.", "card: [CREDIT_CARD]."),
    ("credit_card", "5555-5555-5555-4444, 3782 822463 10005", "[CREDIT_CARD], [CREDIT_CARD]"),
    ("credit_card", "6011000990139424 3566002020360505", "[CREDIT_CARD] [CREDIT_CARD]"),
    ("iban", "IBAN GB82 WEST 1234 5698 7654 32 OK", "IBAN [IBAN] OK"),
    ("iban", "DE89370400440532013000,", "[IBAN],"),
    ("iban", "FR14 2004 1010 0505 0001 3M02 606; NO93 8601 1117 947", "[IBAN]; [IBAN]"),
    ("phone", "call (212) 555-0123 or 212-555-0199", "call [PHONE] or [PHONE]"),
    ("phone", "212.555.0123; 1-800-555-0199", "[PHONE]; [PHONE]"),
    ("phone", "+1 212 555 0123, +44 20 7946 0958, +49 (0)30 901820", "[PHONE], [PHONE], [PHONE]"),
    ("phone", "0044 20 7946 0958", "[PHONE]"),
    ("phone", "+81 3-1234-5678", "[PHONE]"),
    ("phone", "Tel.: 2125550123, fax 2125550124", "Tel.: [PHONE], fax [PHONE]"),
    ("secret", "id AKIAIOSFODNN7EXAMPLE.", "id [SECRET]."),
    ("secret", "ghp_" + "a1B2" * 9, "[SECRET]"),
    ("secret", "xoxb-123456789012-abcdefABCDEF", "[SECRET]"),
    ("secret", f"Bearer {TOKEN}", "Bearer [SECRET]"),
    ("secret", f"a\n{PRIVATE}\nb", "a\n[SECRET]\nb"),
    ("secret", f'api_key = "{RANDOM}"', 'api_key = "[SECRET]"'),
    ("secret", f"a\n{PRIVATE[:70]}", "a\n[SECRET]"),
    ("secret", f"{PRIVATE[:67]}\n\nand more text", "[SECRET]\n\nand more text"),
    ("secret", "PGPASSWORD=s3cr3tP4ssw0rd99 psql", "PGPASSWORD=[SECRET] psql"),
    ("secret", "{accessToken: s3cr3tP4ssw0rd99}", "{accessToken: [SECRET]}"),
    ("secret", f"Authorization: Bearer {RANDOM}", "Authorization: Bearer [SECRET]"),
    ("secret", f"Authorization: Basic {RANDOM}==", "Authorization: Basic [SECRET]"),
    ("secret", "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "aws_secret_access_key = [SECRET]"),
    ("secret", "https://user:pass1234@host.com, redis://:hunter2@x", "https://user:[SECRET]@host.com, redis://:[SECRET]@x"),
    ("secret", "sk-proj-" + RANDOM, "[SECRET]"),
    ("secret", f"export DB_PASSWORD={RANDOM}\n", "export DB_PASSWORD=[SECRET]\n"),
    ("secret", f'{{"client_secret": "{RANDOM}"}}', '{"client_secret": "[SECRET]"}'),
]  # fmt: skip

# what looks like personal data and is none
MISSES = [
    "",
    " \n\t",
    "naïve 日本語",
    "icon@2x.png, a@b, @user, user@localhost, a@b.c, x@@y.com",
    "git@github.com:owner/name.git",
    "version 1.2.3.4, v8.8.8.8, release 8.8.4.4, ==1.4.2.1, 1.2.3.4.5, 1.2.3",
    "8.8.8.8-rc1, 256.1.1.1, 8.8.8.08, 01.02.03.04",
    "Firefox 88.0.1.2, Windows 10.0.1.2",
    "联系@example.com, a-8.8.8.8, 8.8.8.8,5",
    "2.1.3.4 Methods\n## 3.2.1.1 Results",
    "127.0.0.1, 192.168.1.1, 10.0.0.1, 0.0.0.0, 255.255.255.255",
    "12:34:56, 00:1a:2b:3c:4d:5e, std::vector, a::b, ::, ::1, fe80::1, dead::beef, 10:30::",
    "4111 1111 1111 1112, 4111111111111112",  # the check digit is wrong
    "1234567812345670",  # right check digit, no issuer
    "0000000000000000, 4444444444444448",
    "4111 1111-1111 1111, 41111111 11111111",  # no one writes them so
    "3.4111111111111111, 4111111111111111.5, 4111111111111111/2, a4111111111111111",
    "ISBN 978-3-16-148410-0, 9783161484100, 0-306-40615-2",
    "GB83 WEST 1234 5698 7654 32, ZZ82 WEST 1234 5698 7654 32, GB82WEST123456987654321",
    "d41d8cd98f00b204e9800998ecf8427e, da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "2024-01-15, 15.01.2024, 01/15/2024, 2024-01-15T10:30:00, 1990-2024, 10-12-2024",
    "555-123-4567, 112-555-0123, 212-155-0123",  # no such area or exchange
    "2125550123, order 20240115001, id=212-555-0123, #212-555-0123, 212-555-0123-44, 1212-555-0123",
    "$212.555.0123, 3.141.592.6535, 212 555 0123 4567",
    "+1234, +5, 2+2125550123, +999 123 456 789, C++ 11 2024",
    "550e8400-e29b-41d4-a716-446655440000",
    "api_key = YOUR_API_KEY_GOES_HERE, password=${PASSWORD}, token: aaaaaaaaaaaaaaaa1, secret=changeme",
    "password = get_password_from_environment(1)",
    "sha256=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "sk-learning-is-the-most-popular-library, https://user:${PASSWORD}@host, https://host:8080/a@b",
    "-----BEGIN RSA PRIVATE KEY----- is how it begins",
    "sk-learn, task-force-with-a-very-long-name, eyJhbGciOi, AKIA, ghp_short",
    "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQ\n-----END PUBLIC KEY-----",
    "the keys of the house; a token of love; tokenizer: sentencepiece-unigram-32000",
]

# Four numbers: what is left of the text when addresses are redacted, private ones too.
ADDRESSES = [
    # prose
    ("She wrote from 203.0.113.9 that day.", "She wrote from [IP] that day."),
    ("The server at 5.6.7.8 is down.", "The server at [IP] is down."),
    ("Your IP address is 23.45.67.89!", "Your IP address is [IP]!"),
    ("ping 4.2.2.2 and 4.2.2.1", "ping [IP] and [IP]"),
    ("connections from 5.6.7.8, 5.6.7.9 and 5.6.7.10", "connections from [IP], [IP] and [IP]"),
    # logs
    ('5.6.7.8 - - [10/Oct/2000:13:55:36 -0700] "GET /" 200', '[IP] - - [10/Oct/2000:13:55:36 -0700] "GET /" 200'),
    ('66.249.66.1 - jo [10/Oct/2000:13:55:36 -0700] "GET /"', '[IP] - jo [10/Oct/2000:13:55:36 -0700] "GET /"'),
    ("sshd[12]: Accepted key from 5.6.7.8 port 22 ssh2", "sshd[12]: Accepted key from [IP] port 22 ssh2"),
    ("IN=eth0 SRC=5.6.7.8 DST=9.8.7.6 LEN=60", "IN=eth0 SRC=[IP] DST=[IP] LEN=60"),
    ("X-Forwarded-For: 1.2.3.4, 1.2.3.5", "X-Forwarded-For: [IP], [IP]"),
    # configuration
    ('{"ipAddress": "12.1.2.3", "n": 1}', '{"ipAddress": "[IP]", "n": 1}'),
    ("<ip_address>12.1.2.3</ip_address>", "<ip_address>[IP]</ip_address>"),
    ("bind_host = 5.6.7.8", "bind_host = [IP]"),
    ("nameserver 1.1.1.1\nnameserver 8.8.8.8", "nameserver [IP]\nnameserver [IP]"),
    ('remote_addr="1.2.3.4"', 'remote_addr="[IP]"'),
    # URLs, logins, ports, prefix lengths, ranges
    ("http://5.6.7.8/index.html, ftp://jo@5.6.7.8", "http://[IP]/index.html, ftp://jo@[IP]"),
    ("scp a jo@5.6.7.8:/tmp", "scp a jo@[IP]:/tmp"),
    ("5.6.7.8:443 is open", "[IP]:443 is open"),
    ("allow 5.6.7.0/24; deny 12.0.0.0/8; 198.51.100.0/25", "allow [IP]/24; deny [IP]/8; [IP]/25"),
    ("8.8.8.8-8.8.8.20, 203.0.113.1 - 203.0.113.99", "[IP]-[IP], [IP] - [IP]"),
    ("10.0.0.1, 192.168.0.1", "[IP], [IP]"),
]  # fmt: skip

# Four numbers that are none, also when private addresses are asked for.
NUMBERS = [
    "27.2.5.1", "see 27.2.5.1 for more", "as 27.2.5.1(a) says", "[27.2.5.1] modifiers", "(27.2.5.1)", "27.2.5.1/2",
    "27.2.5.1 Modifiers", "// 27.2.5.1  modifiers", "from 27.2.5.1 to 27.2.5.2", "27.2.5.1, 27.2.5.2 and 27.2.5.3",
    "| 27.2.5.1 | modifiers |", "<h4>7.7.3.5 EdDSA</h4>", "<a href='#x'>7.7.3.2 ECDSA</a>", "27.2.5.1: modifiers",
    "§ 10.1.2.3", "§10.1.2.3", "§ 27.200.5.1", "Section 1.2.3.4", "Sections 10.1.2.3 and 10.1.2.4", "sec. 1.2.3.4",
    "Article 10.120.2.3", "RFC 5445 3.8.2.4", "Table 1.2.3.4", "clause 10.1.100.1", "appendix 1.2.3.4",
    "v1.2.3.4", "version 1.2.3.4", "contentVersion: 1.2.3.4", "upgrade V8 to 4.6.85.23", "fixed in 1.8.1.2.",
    "pkg==1.2.3.4", "pkg 1.2.3.4", "pkg-1.2.3.4", "pkg-1.2.3.4.tar.gz", "Chrome/88.0.43.150", "linux 2.6.8.1/9",
    "1.2.3.4.5", "1.3.6.1.4.1.311", "OID 1.3.6.1", "OID 2.5.29.150", 'ObjectIdentifier("2.5.29.35")', "2.5.4.3",
    "The server is down. See 27.2.5.1.", "the host\n27.2.5.1 Modifiers",
]  # fmt: skip

NATIONAL = [
    ("AT", "01 234 5678"), ("AU", "(02) 9876 5432"), ("AU", "0412 345 678"), ("BE", "02 123 45 67"),
    ("BR", "(11) 91234-5678"), ("CA", "416-555-0123"), ("CH", "044 668 18 00"), ("CN", "138 1234 5678"),
    ("CN", "010-12345678"), ("CZ", "602 123 456"), ("DE", "030/901820"), ("DE", "0171 1234567"),
    ("DE", "(089) 123 456"),
    ("ES", "612 345 678"), ("FI", "040 123 4567"), ("FR", "01 23 45 67 89"), ("FR", "06.12.34.56.78"),
    ("GB", "020 7946 0958"), ("GB", "07700 900123"), ("GB", "(01632) 960 001"), ("IE", "01 234 5678"),
    ("IN", "98765 43210"), ("IT", "06 12345678"), ("IT", "347 123 4567"), ("JP", "03-1234-5678"),
    ("KR", "010-1234-5678"),
    ("MX", "55 1234 5678"), ("NL", "06-12345678"), ("NL", "020 123 45 67"), ("PL", "501 234 567"),
    ("PT", "912 345 678"),
    ("RU", "8 (495) 123-45-67"), ("SE", "08-123 456 78"), ("TR", "0532 123 45 67"), ("UA", "067 123 45 67"),
    ("US", "(212) 555-0123"), ("ZA", "082 123 4567"),
]  # fmt: skip


@pytest.mark.parametrize(("entity", "text", "wanted"), FOUND)
def test_it_is_found(entity: str, text: str, wanted: str) -> None:
    assert PiiRedactor().modify_document(text) == wanted
    assert PiiRedactor([entity]).modify_batch(pa.array([text, None])).to_pylist() == [wanted, None]
    assert PiiFilter().score_document(text) == wanted.count(f"[{entity.upper()}]")


@pytest.mark.parametrize("text", MISSES)
def test_it_is_left_alone(text: str) -> None:
    assert PiiRedactor().modify_document(text) == text
    assert PiiFilter().keep_document(PiiFilter().score_document(text))


@pytest.mark.parametrize(("text", "wanted"), ADDRESSES)
def test_addresses_are_found_where_they_are_written(text: str, wanted: str) -> None:
    assert PiiRedactor(["ip"], private_ips=True).modify_document(text) == wanted


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_of_sections_and_versions_are_no_addresses(text: str) -> None:
    assert PiiRedactor(["ip"], private_ips=True).modify_document(text) == text


@pytest.mark.parametrize(("country", "number"), NATIONAL)
def test_numbers_are_known_as_each_country_writes_them(country: str, number: str) -> None:
    assert PiiRedactor(["phone"], countries=[country]).modify_document(f"x {number}, y") == "x [PHONE], y"


def test_a_number_without_code_is_known_only_in_the_countries_asked_for() -> None:
    assert PiiFilter(countries=[]).score_document("(212) 555-0123") == 0
    assert PiiFilter(countries=[]).score_document("+1 (212) 555-0123") == 1
    assert PiiFilter(countries=["DE", "FR"]).score_document("01 23 45 67 89, 2024-01-15, 0.5") == 1
    every = PiiFilter(entities=["phone"], countries=list(PHONE_FORMATS))
    for text in ("2024-01-15", "15.01.2024", "978-3-16-148410-0", "1,234,567", "3.14159265", "10 000", "12:30:45"):
        assert every.score_document(text) == 0, text


def test_private_addresses_only_when_asked_for() -> None:
    text = "127.0.0.1 192.168.0.1 fe80::1:2"
    assert PiiFilter().score_document(text) == 0
    assert PiiRedactor(private_ips=True).modify_document(text) == "[IP] [IP] [IP]"


def test_check_digits() -> None:
    assert passes_luhn("79927398713")
    assert not passes_luhn("79927398710")
    assert passes_mod97("GB82WEST12345698765432")
    assert not passes_mod97("GB82WEST12345698765423")


def test_hashes_are_keyed_stable_and_the_same_for_the_same_value() -> None:
    one = PiiRedactor(action="hash", key="k")
    assert one.modify_document("A@b.org") == one.modify_document("a@B.org") == "[EMAIL:14a51bd9001b]"
    assert one.modify_document("4111 1111 1111 1111") == one.modify_document("4111-1111-1111-1111")
    assert PiiRedactor(action="hash", key="l").modify_document("a@b.org") != one.modify_document("a@b.org")
    mixed = PiiRedactor(action={"email": "hash"}, key="k")
    assert mixed.modify_document("a@b.org 8.8.8.8") == "[EMAIL:14a51bd9001b] [IP]"


def test_the_stage_redacts_drops_and_reports() -> None:
    rows = [{"text": "é a@b.org"}, {"text": "8.8.8.8"}, {"text": None}, {"text": "none"}]
    stage = RedactPii(action={"ip": "drop"}, spans_field="pii")
    out = stage.process(DocumentBatch(rows)).to_rows()
    assert out == [
        {"text": "é [EMAIL]", "pii": [{"entity": "email", "start": 2, "end": 9}]},
        {"text": None, "pii": []},
        {"text": "none", "pii": []},
    ]
    assert take_counts(stage) == {"email": 1, "ip": 1}
    assert stage.thresholds() == {"RedactPii": "drop=ip"}
    assert stage.process(DocumentBatch(pa.table({"text": pa.array([], pa.string())}))).num_items == 0


def test_in_a_pipeline_drops_are_told_with_the_number_of_findings(tmp_path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a@b.org"}\n{"text": "x"}\n{"text": "+1 212 555 0123 a@b.org"}\n')
    stage = RedactPii(action={"phone": "drop"}, spans_field="pii")
    stages = [JsonlReader(str(tmp_path / "in.jsonl")), stage, JsonlWriter(str(tmp_path / "out"))]
    seen = Pipeline("p", stages=stages).preview(3)
    assert [row.scores for row in seen.rows] == [{"RedactPii": 1}, {"RedactPii": 0}, {"RedactPii": 2}]
    Pipeline("p", stages=stages).run(LocalExecutor(num_workers=0))
    [written] = (tmp_path / "out").glob("*.jsonl")
    assert written.read_text() == (
        '{"text":"[EMAIL]","pii":[{"entity":"email","start":0,"end":7}]}\n{"text":"x","pii":[]}\n'
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RedactPii(entities=["mail"]), "no entity 'mail'.*email"),
        (lambda: RedactPii(entities="email"), "must be a list"),
        (lambda: RedactPii(entities=[]), "at least one"),
        (lambda: RedactPii(action="delete"), "no action 'delete'"),
        (lambda: RedactPii(action={"mail": "drop"}), "no entity 'mail'"),
        (lambda: RedactPii(countries=["XX"]), "no country 'XX'"),
        (lambda: PiiRedactor(action="drop"), "no action 'drop'"),
        (lambda: PiiRedactor(action="hash"), "needs a secret key"),
        (lambda: RedactPii(action={"email": "hash"}), "needs a secret key"),
        (lambda: RedactPii(spans_field="text"), "another column"),
        (lambda: PiiFilter(-1), "0 or more"),
    ],
)
def test_bad_parameters_are_refused(make, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


PIECES = [text for _, text, _ in FOUND] + MISSES
documents = st.none() | st.lists(
    st.sampled_from(PIECES) | st.text("+0123456789 .-():/@aA", max_size=20), max_size=4
).map(" ".join)


@given(texts=st.lists(documents, max_size=4))
@settings(max_examples=60, deadline=None)
def test_the_batch_forms_equal_the_document_forms(texts: list[str | None]) -> None:
    column = pa.array(texts, pa.string())
    every = list(PHONE_FORMATS)
    redact, count = PiiRedactor(countries=every, private_ips=True), PiiFilter(countries=every, private_ips=True)
    assert redact.modify_batch(column).to_pylist() == [
        None if text is None else redact.modify_document(text) for text in texts
    ]
    assert count.score_batch(column).to_pylist() == [count.score_document(text or "") for text in texts]
    stage = RedactPii(countries=every, private_ips=True, spans_field="pii")
    rows = stage.process(DocumentBatch(pa.table({"text": column}))).to_rows()
    assert [row["text"] for row in rows] == redact.modify_batch(column).to_pylist()
    assert [len(row["pii"]) for row in rows] == count.score_batch(column).to_pylist()


# what a long text is made of, and what is found in each piece: the time must not grow with the square of the length
LONG = [
    ("1", 0), ("1-", 0), ("+1 ", 0), ("a.", 0), ("A1", 0), (":1", 0), ("@", 0), ("a@", 0), ("a@b.", 0), ("key=", 0),
    ("token=", 0), ("://a:", 0), ("bearer ", 0), ("0101 ", 0), ("eyJaaaaaaaaa.", 0), ("public key a-", 0),
    ("0123456789abcdef", 0), ("https://x.com/word-word-word-", 0), ("-----BEGIN RSA PRIVATE KEY-----\n", 0),
    ("-----BEGIN RSA PRIVATE KEY-----\n" + "A" * 64 + "\n", 1), ("jo@example.com, ", 1), ("8.8.8.8 x ", 1),
]  # fmt: skip


@pytest.mark.parametrize(("piece", "findings"), LONG)
def test_long_runs_take_no_long_time(piece: str, findings: int) -> None:
    times = 300_000 // len(piece)
    assert PiiFilter(countries=["US", "DE"]).score_document("key " + piece * times + "@") == findings * times


def test_many_findings_of_several_kinds_stay_in_order() -> None:
    text = "a@b.org 8.8.8.8 +1 212 555 0123 password=tGzv3JOkF0XG5Qx2TlKWIA9b\n"
    assert PiiRedactor().modify_document(text * 3000) == "[EMAIL] [IP] [PHONE] password=[SECRET]\n" * 3000


def test_they_survive_pickling() -> None:
    for one in (PiiRedactor(), PiiFilter(), RedactPii()):
        assert type(pickle.loads(pickle.dumps(one))) is type(one)
