"""Secrets as clouds, trackers, network equipment, databases and build tools write them: written down before the filter saw them, every third sealed.

``python -m fuzz.forms_of_secrets.clouds opened|sealed`` (in ``tests``) prints those that come out. ``@`` stands for the secret.
"""

from __future__ import annotations

from fuzz.forms_of_secrets.traces import HEX, HORSE, told_of

BASE = "Zm9vYmFyOmNvcnJlY3Rob3JzZTdiYXR0ZXJ5c3RhcGxl"
ALL = (
    ("kubeconfig", "users:\n- name: admin\n  user:\n    client-key-data: @\n", BASE),
    ("Docker, login", '{"auths": {"nvcr.io": {"auth": "@"}}}\n', BASE),
    ("age", "# public key: age1xyz\n@\n", "AGE-SECRET-KEY-1QL3Z7HJY54PW3HYWW5AYYFG7ZQGVC9W2X6FQ5Z8N0RS3JT4KM2L0V9QXU8"),
    ("WireGuard", "[Interface]\nPrivateKey = @\nAddress = 10.0.0.1/24\n", "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk="),
    ("PuTTY's key", "Private-Lines: 1\n@\nPrivate-MAC: 00\n", BASE),
    ("OpenVPN", "<tls-auth>\n-----BEGIN OpenVPN Static key V1-----\n@\n-----END OpenVPN Static key V1-----\n", HEX),
    ("Slack, webhook", "notify: https://hooks.slack.com/services/T024BE7LD/B045XQ3/@\n", "q8Zr1vT5nB3xW7yK9mP2sL4d"),
    ("Discord, webhook", "POST https://discord.com/api/webhooks/113224455667788/@ 204\n", "xK9mP2sL4dq8Zr1vT5nB3xW7y-Zr1vT5nB3xW7yK9mP2sL4dq8Zr1vT5nB3xW7yK9m"),
    ("Sentry", "dsn: https://@@o44.ingest.sentry.io/55\n", HEX),
    ("MinIO's client", "$ mc alias set lake http://minio:9000 admin @\n", HORSE),
    ("rclone, obscured", "[lake]\ntype = sftp\nuser = joe\npass = @\n", "3vT5nB3xW7yK9mP2sL4dq8Zr1vT5nB"),
    ("ClearML", "api {\n  credentials {\n    access_key: X\n    secret_key: \"@\"\n  }\n}\n", "q8Zr1vT5nB3xW7yK9mP2sL4dq8Zr1vT5nB3xW7yK9m"),
    ("Ray", "ray start --head --redis-password=@ --port 6379\n", HORSE),
    ("Ray, two words", "ray start --address h:6379 --redis-password '@'\n", HORSE),
    ("Jupyter", "[I 10:00:00 ServerApp] http://n1:8888/lab?token=@\n", HEX),
    ("Jupyter, hash", "c.ServerApp.password = 'argon2:@'\n", "$argon2id$v=19$m=10240,t=10,p=8$Zm9vYmFyYmF6$q8Zr1vT5nB3xW7yK9mP2sL4d"),
    ("shadow", "joe:@:19700:0:99999:7:::\n", "$6$Zm9vYmFy$q8Zr1vT5nB3xW7yK9mP2sL4dq8Zr1vT5nB3xW7yK9mP2sL4d"),
    ("SNMP, version 3", 'createUser joe SHA "@" AES\n', HORSE),
    ("Redfish", '{"UserName": "admin", "Password": "@", "RoleId": "Administrator"}\n', HORSE),
    ("FreeIPA", "ipa-client-install --principal admin -w @ --unattended\n", HORSE),
    ("realm", "echo @ | realm join --user=admin ad.example\n", HORSE),
    ("SQL, user", "CREATE USER joe IDENTIFIED BY '@';\n", HORSE),
    ("SQL, role", "ALTER ROLE joe WITH LOGIN PASSWORD '@';\n", HORSE),
    ("LDIF", "dn: uid=joe,dc=x\nuserPassword:: @\n", "Y29ycmVjdGhvcnNlN2JhdHRlcnk="),
    ("router, secret", "enable secret 5 @\n", "$1$mERr$hx5rVt7rPNoS4wqbXKX7m0"),
    ("router, user", "username admin privilege 15 password 7 @\n", "08701E1D0A0B1545"),
    ("BGP", "neighbor 10.0.0.1 password @\n", HORSE),
    ("RADIUS", "client sw1 {\n  ipaddr = 10.0.0.2\n  secret = @\n}\n", HORSE),
    ("hostapd", "wpa_passphrase=@\nssid=lab\n", HORSE),
    ("expect", 'spawn ssh -l joe h\nexpect "assword:"\nsend "@\\r"\n', HORSE),
    ("a form", "POST /login HTTP/1.1\n\nusername=joe&password=@&next=%2F\n", HORSE),
    ("a form of parts", 'Content-Disposition: form-data; name="password"\n\n@\n--x--\n', HORSE),
    ("STS", "<Credentials><SessionToken>@</SessionToken></Credentials>\n", BASE),
    ("presigned", "GET https://b.s3.amazonaws.com/k?X-Amz-Expires=900&X-Amz-Signature=@ 403\n", HEX + HEX),
    ("Java", "java -Djavax.net.ssl.keyStorePassword=@ -jar x.jar\n", HORSE),
    ("PowerShell", 'ConvertTo-SecureString "@" -AsPlainText -Force\n', HORSE),
    ("one-time passwords", "otpauth://totp/x:joe?secret=@&issuer=x\n", "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"),
    ("Terraform", '          "admin_password": "@",\n          "sensitive_attributes": []\n', HORSE),
    ("Terraform, variable", 'TF_VAR_db_pw=@ terraform apply -var="db_pass=x"\n', HORSE),
    ("Vault", "Key                  Value\n---                  -----\ntoken                @\ntoken_accessor       x\n", "hvs.CAESIJ1vT5nB3xW7yK9mP2sL4dq8Zr1vT5nB3xW7y"),
    ("Vault, unseal", "Unseal Key 1: @\n", "q8Zr1vT5nB3xW7yK9mP2sL4dq8Zr1vT5nB3xW7yK9mA="),
    ("Google, account", '"private_key_id": "x", "private_key": "-----BEGIN PRIVATE KEY-----\\n@\\n-----END PRIVATE KEY-----\\n"\n', BASE),
    ("uv's index", 'UV_INDEX_LAB_PASSWORD=@ uv sync\n', HORSE),
    ("npmrc", "//registry.lab.example/:_authToken=@\n", HEX),
    ("npmrc, base 64", "_auth=@\nalways-auth=true\n", BASE),
    ("Maven", "<server><id>x</id><username>joe</username><password>@</password></server>\n", HORSE),
    ("gradle", "artifactoryPassword=@\nsystemProp.x=y\n", HORSE),
    ("cargo", '[registries.lab]\ntoken = "Bearer @"\n', HEX),
    ("Go", "GOPROXY=https://joe:@@goproxy.example\n", HORSE),
    ("BeeGFS, Lustre", "lgss_sk -w /etc/x.key: shared key: @\n", HEX),
    ("cryptsetup", "echo -n '@' | cryptsetup luksOpen /dev/sda x -\n", HORSE),
    ("BMC", "ipmitool user set password 2 @\n", HORSE),
    ("racadm", "racadm -r h -u root -p @ get x\n", HORSE),
    ("PBS, mail of a job", "qsub -v DB_PASS=@,LANG=C job.sh\n", HORSE),
    ("Slurm's export", "sbatch --export=ALL,WANDB_API_KEY=@,X=1 job.sh\n", HEX),
    ("enroot", "machine nvcr.io login $oauthtoken password @\n", HORSE),
    ("pyxis", "pyxis: importing docker://joe:@@h/x\n", HORSE),
)  # fmt: skip
SEALED = ALL[2::3]
OPENED = tuple(row for row in ALL if row not in SEALED)

if __name__ == "__main__":
    told_of(OPENED, SEALED)
