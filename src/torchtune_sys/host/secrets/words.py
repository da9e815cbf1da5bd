"""Tables for recognising secrets: their usual names, the prefixes of tokens, and the words without which neither can occur."""

from __future__ import annotations

_B = r"(?![A-Za-z0-9])"
SHAPES = (
    (r"hf_[A-Za-z0-9]{16,}", ("hf_",), "Hugging Face"),
    (r"api_org_[A-Za-z0-9]{16,}", ("api_org_",), "Hugging Face, of an organisation"),
    (r"gh[pousr]_[A-Za-z0-9]{20,}", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), "GitHub"),
    (r"github_pat_\w{20,}", ("github_pat_",), "GitHub"),
    (
        r"gl(?:pat|ptt|dt|rt|rtr|cbt|soat|ft|ffct|imt|agent|wt|oas)-[\w.-]{16,}",
        tuple(
            f"gl{kind}-" for kind in ("pat", "ptt", "dt", "rt", "rtr", "cbt", "soat", "ft", "ffct", "imt", "agent", "wt", "oas")
        ),
        "GitLab",
    ),
    (
        r"(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[0-9A-Z]{16}(?::[A-Za-z0-9/+]{40})?" + _B,
        ("akia", "asia", "abia", "acca", "aroa", "aida"),
        "AWS; s3fs has both parts side by side",
    ),
    (r"grub\.pbkdf2\.sha512\.[0-9A-Fa-f.]{16,}", ("grub.pbkdf2",), "hash of a password, GRUB"),
    (r"AIza[\w-]{30,}", ("aiza",), "Google, API key"),
    (r"ya29\.[\w-]{20,}", ("ya29.",), "Google, OAuth"),
    (r"GOCSPX-[\w-]{20,}", ("gocspx-",), "Google, client secret"),
    (r"sk-[A-Za-z0-9_-]{20,}", ("sk-",), "OpenAI, Anthropic and others"),
    (r"[srp]k_(?:live|test)_[A-Za-z0-9]{10,}", ("k_live_", "k_test_"), "Stripe"),
    (r"nvapi-[\w-]{20,}", ("nvapi-",), "NVIDIA"),
    (r"xox[abeoprs]-[\w-]{10,}", ("xox",), "Slack"),
    (r"xapp-[\w-]{10,}", ("xapp-",), "Slack"),
    (r"hooks\.slack\.com\\{0,3}/(?:services|workflows|triggers)\\{0,3}/[\w/\\-]+", ("hooks.slack",), "Slack, web hook"),
    (r"discord(?:app)?\.com/api/webhooks/[\w/-]+", ("api/webhooks",), "Discord, web hook"),
    (r"npm_[A-Za-z0-9]{30,}", ("npm_",), "npm"),
    (r"pypi-[\w-]{30,}", ("pypi-",), "PyPI"),
    (r"dckr_(?:pat|oat)_[\w-]{20,}", ("dckr_",), "Docker"),
    (r"(?:dapi|dose)[0-9a-f]{32}", ("dapi", "dose"), "Databricks, and its OAuth"),
    (r"dop_v1_[0-9a-f]{40,}", ("dop_v1_",), "DigitalOcean"),
    (r"hv[bsr]\.[\w-]{20,}", ("hvb.", "hvs.", "hvr."), "Vault"),
    (r"r8_[A-Za-z0-9]{30,}", ("r8_",), "Replicate"),
    (r"gsk_[A-Za-z0-9]{30,}", ("gsk_",), "Groq"),
    (r"pplx-[A-Za-z0-9]{30,}", ("pplx-",), "Perplexity"),
    (r"xai-[A-Za-z0-9]{30,}", ("xai-",), "xAI"),
    (r"tgp_v1_[\w-]{20,}", ("tgp_v1_",), "Together"),
    (r"key_[A-Za-z0-9]{30,}", ("key_",), "Modal and others"),
    (r"SG\.[\w-]{16,}\.[\w-]{16,}", ("sg.",), "SendGrid"),
    (r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{20,}", ("shp",), "Shopify"),
    (r"ATATT3[\w=-]{20,}", ("atatt3",), "Atlassian"),
    (r"lin_api_[A-Za-z0-9]{20,}", ("lin_api_",), "Linear"),
    (r"ntn_[A-Za-z0-9]{30,}", ("ntn_",), "Notion"),
    (r"AGE-SECRET-KEY-1[0-9A-Z]{40,}", ("key-",), "age"),
    (r"tskey-[\w-]{16,}", ("key-",), "Tailscale"),
    (r"eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*){0,3}", ("eyj",), "JSON web token, signed or encrypted"),
    (r"[0-9]{8,10}:AA[\w-]{33}", (":aa",), "Telegram"),
    (r"1//0[\w-]{30,}", ("1//0",), "Google, refresh token"),
    (r"AKCp[A-Za-z0-9]{20,}", ("akcp",), "Artifactory, API key"),
    (r"cmVmdGtu[A-Za-z0-9]{20,}", ("cmvmdgtu",), "Artifactory, reference token"),
    (r"gl(?:sa_[A-Za-z0-9]{20,}(?:_[0-9a-fA-F]{4,})?|c_eyJ[\w+/=-]{10,})", ("glsa_", "eyj"), "Grafana"),
    (r"NRAK-[A-Z0-9]{20,}", ("nrak-",), "New Relic"),
    (r"rpa_[A-Z0-9]{30,}", ("rpa_",), "RunPod"),
    (r"esecret_[A-Za-z0-9]{16,}", ("esecret_",), "Anyscale"),
    (r"fw_[A-Za-z0-9]{20,}" + _B, ("fw_",), "Fireworks"),
    (r"dp\.(?:pt|st|ct|sa|scim|audit)\.[\w.-]{20,}", ("dp.",), "Doppler"),
    (r"[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{20,}", (".atlasv1.",), "HashiCorp Terraform"),
    (r"ops_eyJ[\w+/=-]{20,}", ("eyj",), "1Password"),
    (r"MUNGE:[A-Za-z0-9+/=]{16,}:?", ("munge:",), "a credential of MUNGE"),
    (r"[\w~.-]{3}[0-9]Q~[\w~.-]{24,}", ("q~",), "Microsoft Entra, client secret"),
    (
        r"/t/[A-Za-z-]{0,30}[0-9][A-Za-z0-9-]{7,}/[A-Za-z][\w.-]*",
        ("/t/",),
        "conda, in the URL of a channel; the topics of a forum end with a number",
    ),
    (r"K10[0-9a-f]{64}::[\w-]+:[\w-]+", ("k10",), "a cluster of k3s"),
    (r"MII[A-Za-z0-9+/]{40,}={0,2}", ("mii",), "a key or a certificate without its head (DER in base 64)"),
    (r"webhook\.office\.com/webhookb2/[^\s\"'<>]+", ("webhookb2",), "Microsoft Teams, web hook"),
    (r"AQ[A-Za-z0-9+/]{36,38}==", ("aq",), "Ceph"),
    (r"(?:DHHC-1|NVMeTLSkey-1):0[0-3]:[A-Za-z0-9+/=]{20,}:?", ("dhhc-1", "nvmetls"), "NVMe over fabrics"),
    (
        r"(?:figd|pscale_\w{1,8}|jina|lsv2_\w{1,4}|pcsk|sntrys|sntryu|wandb_v1)_[\w-]{16,}",
        ("figd_", "pscale_", "jina_", "lsv2_", "pcsk_", "sntry", "wandb"),
        "Figma, PlanetScale, Jina, LangSmith, Pinecone, Sentry, Weights & Biases",
    ),
    (r"pul-[0-9a-f]{40}", ("pul-",), "Pulumi"),
    (r"csk-[a-z0-9]{40,}", ("csk-",), "Cerebras"),
    (r"fc-[0-9a-f]{32}", ("fc-",), "Firecrawl"),
    (r"sha256~[\w-]{40,}", ("sha256~",), "OpenShift"),
    (r"ABSK[A-Za-z0-9+/]{40,}={0,2}", ("absk",), "AWS, Bedrock"),
    (r"SWMTKN-1-[\w-]{20,}", ("swmtkn",), "Docker, a swarm"),
    (r"CW-SECRET-\w{20,}", ("cw-secret-",), "CoreWeave"),
    (r"\bsecret_[\w-]{1,40}_[0-9a-f]{32}\.[A-Za-z0-9]{32}", ("secret_",), "Lambda"),
    (r"open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/v2/hook/[\w-]+", ("bot/v2/hook",), "Feishu and Lark, web hook"),
    (
        r"\b(?:routing|integration)_key\W{1,6}[0-9a-f]{32}\b",
        ("routing_key", "integration_key"),
        "PagerDuty; the routing keys of message queues are names",
    ),
    (
        r"\\{0,3}\"key\\{0,3}\": {0,4}\\{0,3}\"[\w-]{6,64}\\{0,3}\",(?:\s|\\{1,3}n){0,40}\\{0,3}\"expiration time\\{0,3}\"",
        ("expiration time",),
        "TorchServe, key_file.json",
    ),
    (r"dt0[a-z][0-9]{2}\.[A-Z0-9]{20,}\.[A-Z0-9]{40,}", ("dt0",), "Dynatrace"),
    (r"\$(?:1|2[abxy]|[5-9]|y|gy|apr1|sha1|argon2(?:i|d|id))\$[^\s:'\"]{8,}", ("$",), "hash of a password (crypt(5))"),
)
"""How tokens begin, words of which each holds one (in small letters), and whose they are: from the issuers' own documents and from the rules of GitHub's and GitLab's secret scanning."""
_KEYS = (
    *("api", "access", "private", "account", "auth"),
    *("encryption", "decryption", "signing", "master", "session", "shared", "storage", "subscription", "client", "application", "app", "consumer"),
    *("certificate", "activation", "wep", "deploy", "license", "hmac", "aes", "luks", "wandb", "comet", "openai", "anthropic", "hf"),
)  # fmt: skip
"""Whose key is a secret; of the first five the words may stand apart."""
BEFORE_KEY = ("unseal", *_KEYS[5:])
"""Before a word of its own, as people write it."""
_PASSES = "dbd|db|storage|store|key|user|admin|root|bind|login|smtp|ldap|become|ssh|ssl"
NAMES = (
    r"passw(?:or)?d|passphrase|passcode|(?:\b|[_-])(?:pass(?:in|out)?|pwd|psk|jwt|sas|sig|auth|creds)(?![a-z])|[_-]pw(?![a-z_])|requirepass"
    r"|secret|token|cryptkey|credential|authtok|authorization"
    rf"|(?:{_PASSES})pass(?![a-z])|(?:{'|'.join(_KEYS[:5])})[ _-]?key|(?:{'|'.join(_KEYS[5:])})[_-]?key"
    r"|reg(?:istration[_-])?code|x-amz-signature|x-goog-signature|cookie"
)
QUOTE = r"\\{0,3}[\"']"
"""In JSON that holds JSON the quotes are escaped, once or twice."""
IN_QUOTES = r"\"(?:[^\"\\\n]|\\{1,8}[^\\\n]){1,4096}(?:\"|\Z)|'(?:[^'\\\n]|\\{1,8}[^\\\n]){1,4096}(?:'|\Z)"
IN_ESCAPED_QUOTES = "|".join(
    rf"\\{{{deep}}}\"(?:[^\"\\\n]|\\{{{2 * deep + 1}}}\"|\\(?!\")){{1,4096}}(?:\\{{0,{deep}}}\"|\Z)" for deep in (3, 2, 1)
)
VALUE = (
    r"(?:'{3}[^\n]{1,4096}?(?:'{3}|\Z)|\"{3}[^\n]{1,4096}?(?:\"{3}|\Z)"
    r"|(?:\\{1,3}'){3}[^'\n]{1,4096}(?:(?:\\{0,3}'){1,3}|\Z)"
    rf"|[bBrRuUfF]?(?:{IN_QUOTES}|{IN_ESCAPED_QUOTES}|\\{{1,3}}'[^'\n]{{1,4096}}(?:'|\Z))"
    rf"|[\w.]{{1,64}}\((?:{IN_QUOTES})\)?"
    r"|[^\s\"',;&]{1,4096})"
)
"""A quote that is not closed: the text was cut, by whoever printed it."""
IN_NAMES = (
    "pass",
    "pw",
    "psk",
    "jwt",
    "sas",
    "sig",
    "auth",
    "secret",
    "token",
    "cred",
    "cookie",
    "key",
    "regcode",
    "registration",
)
"""Each of ``NAMES`` holds one of these, each of ``SHAPES`` one of the next: to look for them first saves compiling and running patterns."""
IN_TOKENS = tuple(dict.fromkeys(word for _, words, _ in SHAPES for word in words))
IN_VARIABLES = (*IN_NAMES, "private", "_pat", "proxy")
IN_FORMS = (
    *(" login", "login -", "ipmi", "racadm", "redfish", "redis-cli", "ldap", "mysql", "mariadb", "mongo", "smbclient", "smbget", "cifs", "curlftpfs", "ssh-keygen", "snmp", "curl", "-stdin"),
    *("chpasswd", "sudo -s", "kinit", "<<<", "mosquitto", "cqlsh", "twine ", "zip -", "7z ", "htpasswd", "add_user", "lftp", "http-basic.", "-literal"),
    *("?key=", "&key=", "?code=", "&code=", "signature=", "digest ", "aws4-", "cookie:", "wandb", "config set", "configure set", "--global"),
    *("nmcli", "--conf ", "comment=", "%40"),
    *("login(", 'send "', ": psk", ' * "', '"key', " -a ", "--auth ", "-auth ", "etcdctl", "thin:", "sqlplus"),
    *("openssl ", "kdb5_util", "freerdp", "authtoken", "cryptsetup", "community", "com2sec", "createuser", "identified by", "identified with", "identified as", "ipa-", "mc alias", "mc config", "rpcclient", "net ads", "net rpc", "config create", "mosquitto_passwd", "convertto-secure", "realm ", "adcli", "smbpasswd", "digest-key", "proctitle="),
)  # fmt: skip
"""Each of the forms of ``forms`` holds one of these, or the name of a secret and one of the next."""
IN_NAMED_FORMS = (
    *(
        "value",
        "\t",
        ": [",
        ":[",
        "=[",
        "= [",
        "</",
        "%3d",
        "%253",
        "%3a",
        "&quot;",
        "&#3",
        "('",
        '("',
        "(b'",
        '(b"',
        "(\\",
        "(b\\",
        '"-',
        "'-",
    ),
    *(
        " is: ",
        " was: ",
        " to: ",
        " is '",
        ' is "',
        "setenv ",
        "set -",
        "env ",
        "arg ",
        " for ",
        "token:",
        "word:",
        "passwd:",
        "secret:",
        "key:",
        "pw:",
        "pw=",
        "pwd:",
        "word =",
        "word: ",
        "phrase",
        "change_pass",
        ".secret",
        ".token",
        ".pass",
        "kind",
        "pw ",
        "pw\t",
        "pass ",
        "word ",
        "passwd ",
        "secret ",
        "psk ",
        " key",
        "password(",
        "stats auth",
        '="',
        "='",
        "**",
        "`",
        "|",
    ),
)
_FIRST = (
    *("pass", "pw", "sas=", "sas:", 'sas"', "sas'", "sig=", 'sig"', "sig'", "secret", "token", "key", "cred", "auth", "jwt", "psk", "private", "_pat=", "proxy"),
    *("signature", "cookie", "regcode", "registration", "bearer", "sshpass", "curl", "://", "@"),
)  # fmt: skip
HINTS = (*_FIRST, *IN_TOKENS, *(form for form in IN_FORMS if not any(word in form for word in _FIRST)))
"""A line without any of these holds no secret that has a name or a shape."""

_AT_ITS_BEGINNING, _AT_ITS_END = ("00000", "|", "│", "┃"), ("|", "│", "┃")
_OF_PIECES = (
    '"o", ',
    '"i", ',
    '"o","',
    '"i","',
    "\n00000",
    " 00000",
    "\t00000",
    ">00000",
    "\n|",
    "\n│",
    "\n┃",
    "|\n",
    "|\r",
    "│\n",
    "│\r",
    "┃\n",
    "┃\r",
)


def may_be_in_pieces(text: str) -> bool:
    """Return whether a text may have rows of a table, lines of a dump or events of a terminal, over which a secret is spread."""
    return text.startswith(_AT_ITS_BEGINNING) or text.endswith(_AT_ITS_END) or any(sign in text for sign in _OF_PIECES)
