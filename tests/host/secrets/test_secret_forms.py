"""Secrets whose name is not beside them, or that are written as few texts write them: none is left, and what is none stays."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.forms_of_secrets import clouds, traces
from fuzz.forms_of_secrets.odd_forms import OPENED
from torchtune_sys.host.secrets import filter as secrets
from torchtune_sys.host.secrets.filter import scrubbed
from torchtune_sys.host.secrets.values import HIDDEN

WORD = "qwertyuiopas"
OVER_LINES = {
    "a pod's variable": f"  - name: DB_PASSWORD\n    value: {WORD}\n  - name: X\n    value: kept\n",
    "a pod's variable, JSON": f'{{\n "name": "DB_PASSWORD",\n "value": "{WORD}"\n}},\n{{\n "name": "X",\n "value": "kept"\n}}',
    "the annotation with it": f'{{\\"name\\":\\"DB_PASSWORD\\",\\"value\\":\\"{WORD}\\"}},{{\\"name\\":\\"X\\",\\"value\\":\\"kept\\"}}',
    "a pod's variable, its value first": f"  - value: {WORD}\n    name: DB_PASSWORD\n  - value: kept\n    name: X\n",
    "the same in JSON": f'{{"value": "{WORD}", "name": "DB_PASSWORD"}}, {{"value": "kept", "name": "X"}}\n',
    "an object over lines": f"{{'user':\n  'kept',\n 'password':\n  '{WORD}',\n 'x': 'kept'}}",
    "an object of JSON over lines": f'{{"user": "kept", "api_key":\n    "{WORD}"\n}}',
    "columns": f"NAME         | VALUE\nHOME         | kept\nDB_PASSWORD  | {WORD}\n",
    "columns behind tabs": f"HOME\tkept\nHF_TOKEN\t{WORD}\n",
    "a block of YAML": f"stringData:\n  password: |\n    a {WORD}\n    {WORD}\n  user: kept\n",
    "a folded block": f"token: >-\n  {WORD}\nuser: kept\n",
    "a list": f'"tokens": [\n  "{WORD}",\n  "a{WORD}"\n], "x": "kept"',
    "TOML": f'password = """\n{WORD}"""\nuser = "kept"',
    "a cluster's secret": f"kind: Secret\ndata:\n  a: {WORD}\n  b.c: {WORD}\nmetadata:\n  name: kept\n---\nkind: ConfigMap\ndata:\n  a: kept\n",
    "a cluster's secret, its kind last": f"apiVersion: v1\ndata:\n  a: {WORD}\nkind: Secret\nmetadata:\n  name: kept\n",
    "a cluster's secret, JSON": f'{{"apiVersion": "v1",\n "data": {{\n  "a": "{WORD}"\n }},\n "kind": "Secret",\n "metadata": {{"name": "kept"}}}}',
    "the annotation with it, too": f'x: |\n  {{\\"kind\\":\\"Secret\\",\\"metadata\\":{{\\"name\\":\\"kept\\"}},\\"stringData\\":{{\\"a\\":\\"{WORD}\\"}}}}\n',
    "PuTTY's key": f"PuTTY-User-Key-File-3: ssh-rsa\nPrivate-Lines: 2\nAAAA{WORD}\n{WORD}=\nPrivate-MAC: kept",
    "a passphrase of words": f"user = kept\nwifi.passphrase = a {WORD} b\n",
    "a Dockerfile": f"FROM kept\nENV HF_TOKEN {WORD}\n",
    "arguments of a container": f'"Cmd": [\n  "jupyter",\n  "--NotebookApp.token",\n  "{WORD}",\n  "kept"\n]',
    "arguments of a pod": f"args:\n- --admin-password\n- {WORD}\n- --kept\n- --db-password\n- '{WORD}'\n",
    "a file of properties": f"spark.x kept\nspark.authenticate.secret   {WORD}\n",
    "a job's comment": f"   JobName=kept\n   Comment=wandb pass {WORD}\n   Comment=(null)\n",
    "a variable whose line goes on": f"x kept\nexport WANDB_API_KEY=\\\n    {WORD}\n",
    "YAML, a word below": f"user: kept\ndb_password:\n    {WORD}\nmode:\n  kept\n",
    "a header that was wrapped": f"> Authorization: Bearer\n{WORD}\n> Accept: kept\n",
    "a key without its head": "x\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7" + WORD + "\nkept",
}


@pytest.mark.parametrize("form", OVER_LINES)
def test_a_secret_that_stands_on_another_line_than_its_name(form: str) -> None:
    found = scrubbed(OVER_LINES[form])
    assert WORD not in found and "kept" in found and HIDDEN in found


LEFT = ("Consul, tokens", "davfs2", "Firebase", "Twilio", "mail")
"""Known to come out: no name, and no shape that nothing else has."""


H = "correcthorse7battery"
LIKE_THEM = (
    ("rclone, command", "rclone config create lake s3 provider Minio secret_access_key @", H),
    ("MinIO, before", "mc config host add lake http://h:9000 AK @ --api s3v4", H),
    ("MySQL, kind", "CREATE USER 'joe'%'h' IDENTIFIED WITH mysql_native_password BY '@'", H),
    ("MySQL, function", "SET PASSWORD FOR 'joe' = PASSWORD('@');", H),
    ("Oracle", "CREATE USER joe IDENTIFIED BY @;", H),
    ("psql, command", "psql -c \"ALTER USER joe PASSWORD '@'\"", H),
    ("a domain", "net ads join -U admin%@", H),
    ("TACACS", "tacacs-server host 10.0.0.1 key 7 @", "08701E1D0A0B1545"),
    ("router, kind 4", "username bob secret 4 @", "08701E1D0A0B1545aa"),
    ("a part with its kind", 'Content-Disposition: form-data; name="api_token"\r\nContent-Type: text/plain\r\n\r\n@\r\n--x', traces.HEX),
    ("key in words", "Master Key 2 = @", traces.HEX),
    ("Mosquitto, file", "mosquitto_passwd -b /etc/m joe @", H),
)  # fmt: skip
"""Of the same classes as those before, written after these were mended."""
STILL_OUT = ("CSV",)
IN_PLACES = {row[0]: row[1:] for row in (*OPENED, *traces.ALL, *clouds.ALL, *LIKE_THEM) if row[0] not in (*LEFT, *STILL_OUT)}


@pytest.mark.parametrize("place", IN_PLACES)
def test_a_secret_in_a_place_that_no_list_had(place: str) -> None:
    text, secret = IN_PLACES[place]
    assert secret not in scrubbed(text.replace("@", secret, 1))


@pytest.mark.parametrize(
    "text",
    [
        "https://h/x?code=404&key=12",
        "http://h:8080/path@v1.2",
        "ssh -p 22 login01",
        "docker login registry.example",
        "git@github.com:a/b.git",
        '"names": ["eth0", "eth1"]',
        "name: NCCL_DEBUG\nvalue: INFO",
        "wandb: run 4f1e8f8f",
        "commit 4f1e8f8f8a1e8f8b4f1e8f8f8a1e8f8b0a1b2c3d",
        "temp 60\u00a0\u00b0C \u2502 12\u200bW",
        "echo hello | tee x",
        "mysql -p db",
        "<b>token</b>",
        "**token**: none",
        "| token | none |",
        "| no token | 12 |",
        "PASS test_login in 3 s",
        "the `token` is missing",
        '<input type="text" name="user" value="joe">',
        "smbclient //nas/share -U joe",
        "nf_conntrack: table full; dp.mlx5 rate",
        "kind: ConfigMap\ndata:\n  NCCL_DEBUG: INFO\n---\nkind: Pod\nspec:\n  name: Secret\n",
        '{"kind": "ConfigMap", "data": {"a": "b"}}, {"kind": "Pod"}',
        'if by["token"] == found["x"]: by["password"] = hosts["x"]',
        "entry.pw_uid == int(uid)",
        "docker run --env HF_TOKEN nvcr.io/nvidia/pytorch:25.01",
        "wandb login failed",
        "the env HF_TOKEN is not set",
        "No token for joe: refused",
        "password authentication failed for user joe",
        f"/docker-{'4f1e8f8f' * 8}.scope {'4f1e8f8f' * 8}",
        f"/root/.cache/kernel_{'4f1e8f8f' * 8}.cubin",
        "gcc-12.3.0-lfgmcvqz2bq3xjz4v5r6k7w8h2n3p4q5",
        "dm-name-mpatha 3600a098038314c4d2f244e4f78443342",
        "at::native::vectorized_elementwise_kernel4bf16bf16f32f32_tn",
        "sha512-abcdefghijklmnopqrstuvwxyzabcdefghijklmnop==",
        "https://discuss.pytorch.org/t/cuda-12-error-on-rtx-4090/1234",
        "/src/x/t/po_with_i_default/fr.po",
        "Comment=broken fan, see ticket 7",
        '"args": ["--token-limit", "--port", "8000"]',
        "can not bypass firewall",
        "created secret mysecret",
        "5 4 * * * /usr/bin/x",
        'send "x" to y',
        "x509: sha256 4f1e8f8f",
        "docker run --user joe:users nvcr.io/x",
        "identified by its serial",
        "cache key: 4f1e8f8f8a1e8f8b4f1e8f8f8a1e8f8b",
        "session key: none",
        "net rx 12, net config created",
        "the community standard is used here",
        "com.example.community member joined",
        "10.0.0.1@o2ib:10.0.0.2@o2ib",
        "worker:0@node1 rank0:worker@10.0.0.1",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert scrubbed(text) == text


_PIECES = ("password", "name", "value", "token", ": ", ":", "=", "|", ">", "[", "]", '"', "'", "\\", "\n", " ", "  ", "- ", "(", "<", "</", ">", "%3D", "&quot;", "curl ",
           "docker login ", "-p ", "echo ", "| sudo -S", "x1", "\u00a0", "\uff1d", "Cookie: ", "?key=", "->", "b'", "wandb ", '"--', "%40", "%2F%2Fa%3A", "comment=", "x.token ", "nmcli ", "--conf ")  # fmt: skip


@settings(max_examples=300, deadline=None, database=None)
@given(st.lists(st.sampled_from(_PIECES), max_size=14).map("".join))
def test_what_a_look_before_the_forms_leaves_out_they_would_not_have_found(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "IN_FORMS", ("",))
        plain = scrubbed(text)
    assert scrubbed(text) == plain


@pytest.mark.sampled(5, 15)
@pytest.mark.parametrize(
    "piece",
    ["name: passwordvalue ", "password:\n   ", "authorization: bearer\n", " password: |\n   x\n", 'token=["a",', "password = '''", "cookie: ", "docker login -p", "curl -b ", "echo '%s' a | x",
     "config set password", "?key=1&", "('password','a", "<password>a", "password&quot;%3A%22", "\u00a0password", 'password=\\"\\', "://a:b@", "ab~1Q~", "eyJabcdefgh.", "kind: Secret\ndata:\n a: b\n", '"kind":"Secret","data":{', '"data":{"a', "login -p", "token<<<",
     "machine a login b account ", "passphrase = a b ", "password = " + "a " * 40 + "#\n", "token:", "Private-Lines: 1\nab\n", "password for ", "a1_", "%2F%2Fa%3A", "'--token','", "- --token\n- ", "comment=", "a.token a\n", "curlftpfs user=", "password 2 ", "tacacs-server x key ", "identified with a by ", 'form-data name="password"\n\n', "mc alias set ", "master key 1 =", "config create ", "ipa-x -w", "createuser a sha ", "convertto-securestring ", "echo a | realm", "a:b@c:", "/t/a1-", "QUJDREVGR0hJSktMTU5P="],
)  # fmt: skip
def test_each_form_takes_time_in_proportion(piece: str) -> None:
    def seconds(size: int) -> float:
        text, found = piece * (size // len(piece)), []
        for _ in range(3):
            started = time.thread_time()
            scrubbed(text)
            found.append(time.thread_time() - started)
        return min(found)

    seconds(1000)  # patterns are compiled
    once, four = seconds(15_000), seconds(60_000)
    assert four < 10 * max(once, 0.002), f"{once:.4f} and {four:.4f} s"


REPRESENTED = ("{{b'password': b'{0}'}}", "Namespace(password='''{0}''')", "('x-api-key', '{0}')", "{{'token': '{0}', 'a': 1}}")


@pytest.mark.parametrize("form", REPRESENTED)
@pytest.mark.parametrize("deep", [0, 1, 2])
def test_what_python_shows_of_what_python_showed_is_hidden_too(form: str, deep: int) -> None:
    """A traceback quotes the line of source that raised, and logs quote tracebacks: each level escapes the quotes once more."""
    text = form.format("zq7secretvalue9x")
    for _ in range(deep):
        text = repr(text)
    assert "zq7secretvalue9x" not in scrubbed(f"    raise RuntimeError({text})")
