"""No secret reaches a record, a message or the terminal, whether a run succeeds or fails."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gristmill.core.errors import RecipeError
from gristmill.core.records.stage_identity import describe_stage, plan_differences
from gristmill.core.records.value_identity import describe_value
from gristmill.core.secret_values import Secret, hide_in_urls, hide_secrets, is_secret_name, remember_secrets
from gristmill.recipes import load_recipe
from gristmill.text import JsonlWriter, RedactPii
from tests.observe.test_traces import Collector

NAMES = ["key", "secret", "token", "password", "header", "tuple", "nested", "url", "signature", "pii", "typed", "env"]
SENTINELS = {name: f"SENTINEL-{name}-{number}x9q" for number, name in enumerate(NAMES)}

STAGES = '''
from gristmill import DocumentBatch, ProcessingStage, Secret

class Client(ProcessingStage[DocumentBatch, DocumentBatch]):
    """A stage that calls a service with all kinds of secrets, and has them in its errors."""

    name = "client"

    def __init__(self, api_token, options=None, address="", fails=False, all_fail=False):
        self.api_token, self.options, self.address, self.fails = api_token, options, address, fails
        self.all_fail, self.login = all_fail, ("user", "%(tuple)s")
        self.typed = Secret("%(typed)s")
        self.auth = self.login

    def process(self, task):
        import os
        for row in task.data.column("id").to_pylist():
            if (self.fails and row %% 7 == 0) or self.all_fail:
                cause = OSError(f"behind it: {self.options} {self.typed}")
                cause.add_note(f"note: {self.api_token}")
                raise ValueError(f"refused: {self.api_token} {self.options} {self.address} "
                    f"{self.auth} {self.typed}") from cause
        return task

class Broken(Client):
    name = "broken"

    def setup(self):
        raise RuntimeError(f"cannot log in with {self.api_token} {self.options} {self.address}")
'''

RECIPE = """
stages:
  - JsonlReader:
      file_paths: in
      read_kwargs:
        storage_options: {{key: {key}, secret: {secret}, client_kwargs: {{headers: {{X-Auth-Token: {header}}}}}}}
      storage_options: {{token: {token}, password: {password}}}
  - "stages:{stage}":
      api_token: "${{env:CLIENT_TOKEN}}"
      options: {{a: [{{credentials: {{inner: {nested}}}}}]}}
      address: "https://user:{url}@example.org/x?X-Amz-Signature={signature}&page=1"
      fails: {fails}
      all_fail: {all_fail}
  - RedactPii: {{action: hash, key: {pii}}}
  - JsonlWriter: {{path: out}}
"""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ends", ["well", "with quarantine", "in failure", "in setup"])
def test_no_file_and_no_line_of_a_run_has_a_secret(tmp_path: Path, ends: str, workers: int) -> None:
    (tmp_path / "stages.py").write_text(STAGES % SENTINELS)
    _write_input(tmp_path)
    fails = {"fails": ends == "with quarantine", "all_fail": ends == "in failure"}
    recipe = RECIPE.format(**SENTINELS, **fails, stage="Broken" if ends == "in setup" else "Client")
    (tmp_path / "recipe.yaml").write_text(recipe)
    options = ["--run-dir", "records", "--workers", str(workers), "--max-errors", "50%", "--rejected", "--scores"]
    done = _gristmill(tmp_path, "run", "recipe.yaml", *options)
    assert (done.returncode == 0) == (ends in ("well", "with quarantine")), done.stderr
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    del written[tmp_path / "stages.py"], written[tmp_path / "recipe.yaml"]
    written = {path: content for path, content in written.items() if path.suffix != ".pyc"}
    assert tmp_path / "records" / "plan.json" in written
    written |= {Path("stdout"): done.stdout.encode(), Path("stderr"): done.stderr.encode()}
    found = [(path.name, name) for path, text in written.items() for name in NAMES if SENTINELS[name].encode() in text]
    assert not found
    assert ends != "with quarantine" or b"refused" in b"".join(written.values())
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "records").glob("*.json*")}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "records").stat().st_mode) == 0o700


@pytest.mark.parametrize("ends", ["with quarantine", "in failure", "in setup"])
def test_no_event_and_no_span_has_a_secret(tmp_path: Path, ends: str) -> None:
    (tmp_path / "stages.py").write_text(STAGES % SENTINELS)
    _write_input(tmp_path)
    fails = {"fails": ends == "with quarantine", "all_fail": ends == "in failure"}
    recipe = RECIPE.format(**SENTINELS, **fails, stage="Broken" if ends == "in setup" else "Client")
    (tmp_path / "recipe.yaml").write_text(recipe)
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, args=(0.05,))
        thread.start()
        options = ["--run-dir", "records", "--workers", "1", "--max-errors", "50%", "--traces", collector.url, "-v"]
        done = _gristmill(tmp_path, "run", "recipe.yaml", *options, "--json")
        collector.shutdown()
        thread.join()
    commands = [["quarantine", "list", "records", "-v"], ["report", "records"], ["plan", "recipe.yaml", "-v"]]
    told = [done, *(_gristmill(tmp_path, *command) for command in commands)]
    texts = [one.stdout + one.stderr for one in told] + [str(collector.spans)]
    assert '"event"' in texts[0]
    assert "client" in texts[-1] or ends == "in setup"
    assert not [(number, name) for number, text in enumerate(texts) for name in NAMES if SENTINELS[name] in text]


def test_the_recipe_of_a_run_has_references_and_works_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "stages:\n"
        f"  - JsonlReader: {{file_paths: in, storage_options: {{key: {SENTINELS['key']}, anon: false}}}}\n"
        f"  - RedactPii: {{action: hash, key: '${{env:PII_KEY}}'}}\n"
        f"  - JsonlWriter: {{path: '${{env:WHERE}}/out', storage_options: {{key: {SENTINELS['secret']}}}}}\n"
    )
    monkeypatch.setenv("PII_KEY", SENTINELS["pii"])
    monkeypatch.setenv("WHERE", "here")
    recipe = load_recipe(tmp_path / "recipe.yaml")
    text = recipe.to_yaml()
    assert "key: ${env:STORAGE_OPTIONS_KEY}" in text
    assert "key: ${env:STORAGE_OPTIONS_KEY_2}" in text
    assert "key: ${env:PII_KEY}" in text
    assert "path: ${env:WHERE}/out" in text
    (tmp_path / "again.yaml").write_text(text)
    with pytest.raises(RecipeError, match=r"STORAGE_OPTIONS_KEY is not set: set it \(export STORAGE_OPTIONS_KEY="):
        load_recipe(tmp_path / "again.yaml")
    monkeypatch.setenv("STORAGE_OPTIONS_KEY", SENTINELS["key"])
    monkeypatch.setenv("STORAGE_OPTIONS_KEY_2", SENTINELS["secret"])
    again = load_recipe(tmp_path / "again.yaml")
    assert again.stages == recipe.stages
    assert again.to_yaml() == text
    assert again.build().stages[1].key == SENTINELS["pii"]


def test_a_new_key_for_hashes_is_a_change_and_new_credentials_are_none() -> None:
    def differences(old: object, new: object) -> list[str]:
        return plan_differences([describe_stage(old)], [describe_stage(new)])  # type: ignore[arg-type]

    def hashing(key: str) -> RedactPii:
        return RedactPii(action="hash", key=key)

    def writing(key: str) -> JsonlWriter:
        return JsonlWriter("out", storage_options={"key": key})

    assert differences(hashing("first"), hashing("second"))
    assert not differences(hashing("first"), hashing(Secret("first", "${env:K}")))
    assert not differences(writing("first"), writing("second"))
    described = json.dumps(describe_value({"auth": ("user", "hunter22"), "a": [{"password": 12345678}]}))
    assert "hunter22" not in described
    assert "12345678" not in described


def test_what_is_done_with_secrets_is_no_secret(tmp_path: Path) -> None:
    action = {"email": "redact", "secret": "drop"}
    stages = [
        {"JsonlReader": {"file_paths": "in"}},
        {"RedactPii": {"action": action}},
        {"JsonlWriter": {"path": "out"}},
    ]
    (tmp_path / "recipe.yaml").write_text(json.dumps({"stages": stages}))
    (tmp_path / "again.yaml").write_text(load_recipe(tmp_path / "recipe.yaml").to_yaml())
    assert load_recipe(tmp_path / "again.yaml").build().stages[1].action == action
    redacting, dropping = RedactPii(), RedactPii(action=action)
    assert plan_differences([describe_stage(redacting)], [describe_stage(dropping)])
    remember_secrets([redacting, dropping])
    assert hide_secrets("redact or drop") == "redact or drop"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://AKIA:se/cr+et@bucket/x", "s3://***@bucket/x"),
        ("ftp://user:pw@host:21/a, ftp://b:c@d", "ftp://***@host:21/a, ftp://***@d"),
        ("https://h/a?x=1&X-Amz-Signature=abc%2F&y=2#z", "https://h/a?x=1&X-Amz-Signature=***&y=2#z"),
        ("https://a.blob/x?sv=1&sig=abc=", "https://a.blob/x?sv=1&sig=***"),
        ("https://host:8080/users/@me", "https://host:8080/users/@me"),
        ("hf://datasets/a/b@main/x", "hf://datasets/a/b@main/x"),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x"),
        ("https://ghp_0123456789abcdef@github.com/x", "https://***@github.com/x"),
    ],
)
def test_urls_are_shown_without_logins_and_signatures(text: str, shown: str) -> None:
    assert hide_in_urls(text) == shown


@pytest.mark.parametrize(
    ("names", "secret"),
    [
        ("key secret token apiKey X-Api-Key Authorization aws_secret_access_key aws_access_key_id sas_token pwd", True),
        ("account_key connection_string client_secret credentials hf_token auth Cookie passphrase HF_TOKEN", True),
        ("text_key sort_key tokenizer token_field max_tokens pad_token eos_token author keys passes headers", False),
    ],
)
def test_secrets_are_known_by_their_names(names: str, secret: bool) -> None:
    assert {name: is_secret_name(name) for name in names.split()} == dict.fromkeys(names.split(), secret)


def test_hiding_is_linear_in_hostile_texts() -> None:
    for text in ("https://a:" * 50_000, "?a&" * 100_000, "://" * 100_000, "Bearer " * 50_000, "?" + "a" * 200_000):
        assert hide_secrets(text)


def test_secrets_are_hidden_in_all_texts_once_they_are_known() -> None:
    remember_secrets({"headers": {"Authorization": "Zq8-known/secret"}, "text": "Zq8-known"})
    assert hide_secrets("got Zq8-known/secret and Zq8-known%2Fsecret for Zq8-known") == "got *** and *** for Zq8-known"


def _write_input(folder: Path) -> None:
    (folder / "in").mkdir()
    for number in range(2):
        lines = [json.dumps({"id": 40 * number + row, "text": f"mail me at a{row}@example.org"}) for row in range(40)]
        (folder / "in" / f"{number}.jsonl").write_text("\n".join(lines) + "\nnot json\n")


def _gristmill(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gristmill.cli.main", *arguments]
    env = {**os.environ, "CLIENT_TOKEN": SENTINELS["env"]}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
