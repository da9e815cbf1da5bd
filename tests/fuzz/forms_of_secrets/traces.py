"""Secrets in process tables, traces, pages and other places that no list of the tests had: written down before the filter saw them, every third sealed.

``python tests/fuzz/forms_of_secrets/traces.py opened|sealed`` prints those that come out. ``@`` stands for the secret.
"""

from __future__ import annotations

import sys

HORSE = "correcthorse7battery"
HEX = "9b2f61d07ac84e35b1f0d9a27c6e5f13"
ALL = (
    ("ps: smbclient", "joe  4242  1  0 10:00 ?  00:00:01 smbclient //nas/share @ -U joe\n", HORSE),
    ("ps: ldapsearch", "root 77 1 0 ldapsearch -x -D cn=admin,dc=x -w @ -b dc=x\n", HORSE),
    ("ps: lftp", "joe 78 1 0 lftp -u joe,@ sftp://h\n", HORSE),
    ("ps: zip", "joe 79 1 0 zip -P @ out.zip data\n", HORSE),
    ("ps: 7z", "joe 80 1 0 7z x -p@ data.7z\n", HORSE),
    ("ps: gpg", "joe 81 1 0 gpg --batch --passphrase @ -d x.gpg\n", HORSE),
    ("ps: psql", 'joe 82 1 0 psql host=db user=joe password=@ dbname=x\n', HORSE),
    ("ps: skopeo", "joe 83 1 0 skopeo copy --src-creds joe:@ docker://h/x dir:/x\n", HORSE),
    ("ps: nmcli", "root 84 1 0 nmcli device wifi connect lab password @\n", HORSE),
    ("ps: htpasswd", "root 85 1 0 htpasswd -b /etc/h joe @\n", HORSE),
    ("ps: aws", "joe 86 1 0 aws configure set aws_secret_access_key @\n", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    ("ps: kubeadm", "root 87 1 0 kubeadm join h:6443 --token @ --discovery-token-ca-cert-hash sha256:00\n", "abcdef.0123456789abcdef"),
    ("ps: kubectl", "root 88 1 0 kubectl create secret generic x --from-literal=pw=@\n", HORSE),
    ("environ of a process", "LANG=C\0DB_PASSWORD=@\0HOME=/root\0", HORSE),
    ("strace, execve", 'execve("/usr/bin/mysql", ["mysql", "-u", "root", "-p@"], 0x7ffd /* 20 vars */) = 0\n', HORSE),
    ("strace, Redis", 'sendto(4, "AUTH @\\r\\n", 27, 0, NULL, 0) = 27\n', HORSE),
    ("strace, POP3", 'write(3, "USER joe\\r\\nPASS @\\r\\n", 36) = 36\n', HORSE),
    ("bash -x", "+ export DB_PASS=@\n", HORSE),
    ("bash -x, a name that tells nothing before a login", "+ mysql -h db -u root --password @ -e 'select 1'\n", HORSE),
    ("audit, execve", 'type=EXECVE msg=audit(1.0:2): argc=3 a0="sshpass" a1="-p" a2="@"\n', HORSE),
    ("audit, proctitle", "type=PROCTITLE msg=audit(1.0:2): proctitle=@\n", b"mysql\0-pcorrecthorse7battery".hex().upper()),
    ("sudo's log", "sudo: joe : TTY=pts/0 ; PWD=/ ; USER=root ; COMMAND=/usr/bin/mysql --password=@ -e x\n", HORSE),
    ("history", "#1764200000\nexport MLFLOW_TRACKING_PASSWORD=@\n", HORSE),
    ("crontab", '0 * * * * curl -s -H "Authorization: token @" https://h/x\n', HEX),
    ("argparse", "Namespace(lr=0.1, wandb_api_key='@', epochs=3)\n", HEX),
    ("pydantic", "Settings(db=Db(password=SecretStr('@'), host='h'))\n", HORSE),
    ("Hadoop", "spark.hadoop.fs.s3a.secret.key=@\n", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    ("Hadoop, Azure", "fs.azure.account.key.lake.dfs.core.windows.net=@\n", "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq=="),
    ("Azure, SAS", "GET https://lake.blob.core.windows.net/c/x?sv=2022-11-02&se=2026-12-01&sr=b&sig=@ 403\n", "u3fQn2mB7vL4pT8wR3nY6cZX9kQ2mB7vL4pT8wR3nY6c%3D"),
    ("Set-Cookie", "< Set-Cookie: session=@; Path=/; HttpOnly\n", HEX),
    ("HTML, input", '<form><input type="password" name="p" value="@"></form>\n', HORSE),
    ("HTML, meta", '<meta name="csrf-token" content="@">\n', HEX),
    ("Markdown, table", "| variable | value |\n|---|---|\n| DB_PASSWORD | @ |\n", HORSE),
    ("Markdown, list", "- **password**: @\n- `user`: joe\n", HORSE),
    ("Markdown, code", "The `API_TOKEN` is `@`.\n", HEX),
    ("CSV", "user,password\njoe,@\n", HORSE),
    ("XML", '<property name="hibernate.connection.password" value="@"/>\n', HORSE),
    ("XML, entry", '<entry key="db.password">@</entry>\n', HORSE),
    ("Ansible, diff", "--- before\n+++ after\n@@ -1 +1 @@\n-password = old\n+password = @\n".replace("@@ -1 +1 @@", "%% -1 +1 %%"), HORSE),
    ("Ansible, item", "ok: [n1] => (item={'name': 'joe', 'password': '@'})\n", HORSE),
    ("Ansible, command", 'fatal: [n1]: FAILED! => {"cmd": ["mysql", "-uroot", "-p@"], "rc": 1}\n', HORSE),
    ("iSCSI", "node.session.auth.password_in = @\n", HORSE),
    ("kernel's argument", "BOOT_IMAGE=/vmlinuz systemd.set_credential=db.pw:@ quiet\n", HORSE),
    ("systemctl show", "Environment=LANG=C SECRET_KEY=@ HOME=/root\n", HORSE),
    ("basic login", "Authorization header: Basic @\n", "am9lOmNvcnJlY3Rob3JzZTdiYXR0ZXJ5"),
    ("gdb", '0x7ffe1: "HOME=/root"\n0x7ffe2: "HF_TOKEN_FOR_CI=@"\n', HEX),
)  # fmt: skip
SEALED = ALL[2::3]
OPENED = tuple(row for row in ALL if row not in SEALED)


def told_of(opened: tuple[tuple[str, str, str], ...], sealed: tuple[tuple[str, str, str], ...]) -> None:
    """Print which of the rows come out, as the first argument says."""
    from torchtune_sys.host.secrets.filter import scrubbed

    rows = {"opened": opened, "sealed": sealed}[sys.argv[1]]
    out = [
        (name, told)
        for name, text, secret in rows
        if secret in (told := scrubbed(text.replace("@", secret, 1).replace("%", "@")))
    ]
    for name, told in out:
        print(f"{name}: {told!r}")
    print(f"{len(out)} of {len(rows)} come out")


if __name__ == "__main__":
    told_of(OPENED, SEALED)
