"""Secrets of many shapes, each with a text that holds it as people write it. None of them is anybody's."""

from __future__ import annotations

import random
import string

LETTERS, DIGITS = string.ascii_letters + string.digits, string.digits
UPPER, HEX, LOWER = string.ascii_uppercase + string.digits, string.digits + "abcdef", string.ascii_lowercase

TOKENS = (
    ("hf_", LETTERS, 34), ("ghp_", LETTERS, 36), ("gho_", LETTERS, 36), ("github_pat_", LETTERS, 40), ("glpat-", LETTERS, 20), ("gldt-", LETTERS, 20),
    ("AKIA", UPPER, 16), ("ASIA", UPPER, 16), ("AIza", LETTERS, 35), ("ya29.", LETTERS, 60), ("GOCSPX-", LETTERS, 28), ("sk-", LETTERS, 48),
    ("sk-ant-api03-", LETTERS, 60), ("sk-proj-", LETTERS, 48), ("sk_live_", LETTERS, 24), ("rk_test_", LETTERS, 24), ("nvapi-", LETTERS, 60),
    ("xoxb-", LETTERS, 40), ("xoxp-", LETTERS, 40), ("xapp-", LETTERS, 40), ("npm_", LETTERS, 36), ("pypi-", LETTERS, 80), ("dckr_pat_", LETTERS, 27),
    ("dapi", HEX, 32), ("dop_v1_", HEX, 64), ("hvs.", LETTERS, 24), ("r8_", LETTERS, 37), ("gsk_", LETTERS, 48), ("pplx-", LETTERS, 48), ("xai-", LETTERS, 60),
    ("shpat_", HEX, 32), ("lin_api_", LETTERS, 40), ("ntn_", LETTERS, 44), ("tskey-auth-", LETTERS, 30), ("AGE-SECRET-KEY-1", UPPER, 58),
    ("$6$", LETTERS, 86), ("eyJhbGciOi.eyJzdWIi.", LETTERS, 43), ("api_org_", LETTERS, 34),
    ("1//0", LETTERS, 60), ("AKCp", LETTERS, 69), ("cmVmdGtu", LETTERS, 56), ("glsa_", LETTERS, 32), ("NRAK-", UPPER, 27), ("rpa_", UPPER, 42),
    ("esecret_", LETTERS, 32), ("fw_", LETTERS, 24), ("dp.pt.", LETTERS, 43), ("ops_eyJ", LETTERS, 60), ("MUNGE:", LETTERS, 60), ("abc8Q~", LETTERS, 34),
    ("glffct-", LETTERS, 20), ("eyJhbGciOiJkaXIiLCJlbmMi.abcdefgh.abcdefgh.abcdefgh.", LETTERS, 22), ("wandb login ", HEX, 40),
    ("bkua_", HEX, 40), ("sgp_", HEX, 40), ("rubygems_", HEX, 48), ("sntryu_", HEX, 64), ("lsv2_pt_", HEX, 32), ("pcsk_a1b2c3_", LETTERS, 63), ("pul-", HEX, 40),
    ("csk-", LOWER + DIGITS, 48), ("sk_", HEX, 48), ("CCIPAT_", HEX, 40), ("DHHC-1:01:", LETTERS, 44), ("sha256~", LETTERS, 43), ("ABSK", LETTERS, 60), ("fc-", HEX, 32),
    ("SWMTKN-1-", LOWER + DIGITS, 50), ("dt0c01.ABCDEFGHIJKLMNOPQRSTUVWX.", UPPER, 64), ("figd_", LETTERS, 40),
)  # fmt: skip
BARE = ("{0}", "note: {0}", "--resume {0} --lr 3", "x={0};y=1", "(see {0})", "'{0}'")
KEYED = (
    "train --password {0} --lr 3", "train --api-key {0}", "train --hf-token={0}", "mysql --pass {0} -h x", "sshpass -p {0} ssh x", "curl -u joe:{0} https://h/",
    "password={0},vers=3.0", "password = {0}", '"password": "{0}"', "  password: {0}", "db_password={0}", "WANDB_API_KEY={0}", "export HF_TOKEN='{0}'",
    "AWS_SECRET_ACCESS_KEY={0}", "secret={0}", "client_secret={0}", "https://joe:{0}@hub.example/x", "postgres://joe:{0}@db:5432/x", "machine h login joe password {0}",
    "Authorization: Basic {0}x", "Authorization: Bearer {0}", '{{"auths": {{"h": {{"auth": "{0}"}}}}}}', "AccountKey={0};x=1", "https://h/x?X-Amz-Signature={0}&y=1",
    "https://h/x?sv=1&sig={0}", "passphrase={0}", "PGPASSWORD={0}", "private_key={0}", "aws_session_token = {0}", "psk={0}", "cookie={0}",
    "password => {0}", "password -> {0}", "Namespace(password='''{0}'''", "{{b'password': b'{0}'}}", "('x-api-key', '{0}')", '"password": "a\\"{0}"',
    "<password>{0}</password>", '{{"name": "DB_PASSWORD", "value": "{0}"}}', '<entry key="password" value="{0}"/>', '"passwords": ["x", "{0}"]',
    "docker login -u joe -p {0} r.example", "ipmitool -H x -U joe -P {0} power status", "mysql -ujoe -p{0} db", "redis-cli -h x -a {0}", "echo {0} | sudo -S id",
    "echo {0} | docker login -u joe --password-stdin", "curl -b 's={0}' https://h/", "Cookie: a=b; s={0}; c=d", "Set-Cookie: s={0}; HttpOnly",
    'Authorization: Digest username="u", response="{0}"', "https://h/x?key={0}", "https://h/x?a=1&code={0}", "https://h/x?Expires=1&Signature={0}",
    "https://h/x?a=1\\u0026sig={0}", "password%3D{0}", "%22password%22%3A%22{0}%22", "password=&quot;{0}&quot;", "postgresql://joe:a/{0}@db:5432/x",
    "mysql://joe:a@{0}@db/x", "joe:{0}@tcp(127.0.0.1:3306)/db", "AWS Secret Access Key [None]: {0}", "aws configure set aws_secret_access_key {0}",
    "os.environ['HF_TOKEN'] = '{0}'", "PASSWORD?={0}", "password:{0}", "pw={0}", "AccountingStoragePass={0}", "openssl rsa -passin pass:{0}", "SSHPASS={0}", "wandb_key={0}",
    "az login -u joe -p {0}", "kubectl create secret generic x --from-literal=a={0}", "zip -P {0} x.zip x", "login('{0}')", "htpasswd -b f joe {0}", "setenv HF_TOKEN {0}",
    "docker login -u joe --password-stdin <<< {0}", "machine h login joe account {0}", "https://{0}:@h.example/x", "Authorization: Api-Token {0}", "Password for joe: {0}",
    "password\uff1d{0}", "--password\u00a0{0}", "pass\u200bword={0}", "Ocp-Apim-Subscription-Key: {0}",
    "['mysql', '--password', '{0}', 'db']", '"args": ["--api-key", "{0}"]', "jupyter lab --IdentityProvider.token {0}", "exporter --web.auth joe:{0}", "skopeo copy --src-creds=joe:{0} a b",
    "plink -pw {0} joe@h", "ssh-keygen -t rsa -N {0} -f k", "curlftpfs h /f -o rw,user=joe:{0}", "connect -H joe:{0}@proxy:80 h", "x%3BPWD%3D{0}%3B", "to=https%3A%2F%2Fjoe%3A{0}%40h",
    "password==>{0}", "password:: {0}", "PASSWORD: !!str {0}", "password: &a {0}", "\u201cpassword\u201d: \u201c{0}\u201d", "password\\x3d{0}", "password%253D{0}",
    "\x1b[1mpassword\x1b[0m: \x1b[32m{0}\x1b[0m",
    "spark-submit --conf spark.authenticate.secret {0}", "nmcli con add wifi-sec.psk {0}", "smbget -U joe%{0} smb://h/x", "Comment=pass {0}", "https://conda.example/t/a1{0}/main",
)  # fmt: skip
CMDLINE = (
    "iscsi_password={0}",
    "ceph.secret={0}",
    "netboot_auth={0}",
    "ks=https://joe:{0}@h/ks",
    "inst.ks=http://h/{0}",
    "rd.iscsi.password={0}",
    "netroot=iscsi:joe:{0}@10.0.0.1::3260::iqn.x:y",
)

_PIECE = 12
"""Letters: as long as the shortest secret here."""


class Secrets:
    """Secrets that are never given twice, so that one that gets out is known again."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self.planted: dict[str, str] = {}
        """Secret → the text that it was planted in."""

    def token(self) -> str:
        start, signs, length = TOKENS[len(self.planted) % len(TOKENS)]
        found = start + "".join(self._random.choices(signs, k=length))
        return self._in(BARE[len(self.planted) % len(BARE)], found)

    def password(self) -> str:
        return self._in(KEYED[len(self.planted) % len(KEYED)], self.word())

    def argument(self) -> str:
        return self._in(CMDLINE[len(self.planted) % len(CMDLINE)], self.word())

    def random(self) -> str:
        """Known by nothing but its letters: a word that may be one by chance is drawn again."""
        from torchtune_sys.host.secrets.values import looks_random

        while not looks_random(found := "".join(self._random.choices(LETTERS, k=32))):
            pass
        return self._in("note {0}", found)

    def key(self) -> list[str]:
        rows = ["".join(self._random.choices(LETTERS, k=64)) for _ in range(2)]
        for row in rows:
            self.planted[row] = "a private key"
        return ["-----BEGIN OPENSSH PRIVATE KEY-----", *rows, "-----END OPENSSH PRIVATE KEY-----"]

    def word(self) -> str:
        """Nothing in it looks like a secret: only its place tells."""
        return "".join(self._random.choices(LOWER, k=12))

    def of_each(self) -> list[str]:
        """One line of each kind."""
        return [self.token(), self.password(), self.random()]

    def seen_in(self, text: str) -> list[str]:
        return [f"{secret} ({where})" for secret, where in self.planted.items() if secret in text]

    def pieces_in(self, text: str) -> list[str]:
        """As :meth:`seen_in`, also of a secret that was cut: twelve letters of it that follow each other, behind what all of its kind begin with."""
        starts = tuple(start for start, _, _ in TOKENS)
        found = []
        for secret, where in self.planted.items():
            bare = secret[max((len(start) for start in starts if secret.startswith(start)), default=0) :]
            if any(bare[at : at + _PIECE] in text for at in range(len(bare) - _PIECE + 1)):
                found.append(f"{secret} ({where})")
        return found

    def _in(self, text: str, secret: str) -> str:
        self.planted[secret] = text
        return text.format(secret)
