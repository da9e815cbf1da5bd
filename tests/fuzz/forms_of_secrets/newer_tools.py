"""Secrets of tools of 2025 and 2026, in places that no list had: written down before the filter saw them, every third sealed.

``python -m fuzz.forms_of_secrets.newer_tools opened|sealed`` (in ``tests``) prints those that come out. ``@`` stands for the secret, ``%`` for an at sign.
"""

from __future__ import annotations

from fuzz.forms_of_secrets.newer_issuers import BASE, JWT, LOWER, MIXED, UPPER, UUID
from fuzz.forms_of_secrets.traces import HEX, HORSE, told_of

ALL = (
    ("Claude Code, credentials", '{"claudeAiOauth":{"accessToken":"@","expiresAt":1}}\n', "sk-ant-oat01-" + MIXED + "-" + MIXED + "AA"),
    ("Claude Code, variable", "ANTHROPIC_AUTH_TOKEN=@\n", HORSE),
    ("Codex, auth.json", '{"tokens": {"id_token": "x", "refresh_token": "@", "account_id": "y"}}\n', "rt_" + MIXED + "." + MIXED),
    ("MCP server, environment", '{"mcpServers": {"db": {"command": "npx", "env": {"PG_CONN": "postgres://joe:@%db/x"}}}}\n', HORSE),
    ("MCP server, headers", '{"mcpServers": {"x": {"url": "https://h/mcp", "headers": {"X-Auth": "@"}}}}\n', MIXED),
    ("MCP server, arguments", '{"mcpServers": {"x": {"args": ["-y", "mcp-x", "--access-token", "@"]}}}\n', MIXED),
    ("OpenCode, auth.json", '{"anthropic": {"type": "api", "key": "@"}}\n', MIXED),
    ("Cursor", "CURSOR=@\n", "crsr_" + HEX + HEX),
    ("Tinker", "key @\n", "tml-" + MIXED + MIXED),
    ("LiteLLM, master key", "general_settings:\n  master_key: @\n", "sk-" + "q8Zr1vT5nB3xW7yK"),
    ("Langfuse", "langfuse: @\n", "sk-lf-" + UUID),
    ("Tavily", "x @\n", "tvly-dev-" + MIXED),
    ("E2B", "x @\n", "e2b_" + HEX + "9b2f61d0"),
    ("Daytona", "x @\n", "dtn_" + HEX + HEX),
    ("Prime Intellect", "prime login: @\n", "pit_" + HEX + HEX),
    ("SkyPilot, service account", "sky api login -e http://h:46580 --token @\n", "sky_" + JWT),
    ("SkyPilot, endpoint", "endpoint: http://admin:@%sky.example:30050\n", HORSE),
    ("dstack", "dstack project add --name m --url http://h --token @\n", UUID),
    ("pyx, key", "uv auth login pyx.dev --token @\n", "sk-pyx-" + MIXED),
    ("uv, credentials", '[[credential]]\nservice = "https://h"\nusername = "joe"\nscheme = "basic"\npassword = "@"\n', HORSE),
    ("pixi", "pixi auth login repo.example --conda-token @\n", HORSE),
    ("Xet", "x-xet-access-token: @\n", JWT),
    ("Trackio", "https://joe-trackio.hf.space/?project=x&write_token=@\n", MIXED),
    ("fal", "FAL_KEY=@\n", UUID + ":" + HEX),
    ("Baseten", "Authorization: Api-Key @\n", "q8Zr1vT5.9mP2sL4dq8Zr1vT5nB3xW7yK9mP2sL4d"),
    ("Nebius", "curl -H \"X: @\"\n", "v1.Cmq8Zr1vT5nB3xW7yK9mP2sL4dq8Zr1vT5nB3xW7yK9mP2sL4dq8Zr1vT5nB3xW7yK9mP2"),
    ("Lepton", "lep login -c ws1:@\n", "q8zr1vt5nb3xw7yk9mp2sl4d"),
    ("Run:ai, application", "runai login application --name x --secret @ --interactive=n\n", MIXED),
    ("Vercel, AI gateway", "x @\n", "vck_" + MIXED + MIXED),
    ("OpenTelemetry, headers", "OTEL_EXPORTER_OTLP_HEADERS=x-honeycomb-team=@\n", "q8Zr1vT5nB3xW7yK9mP2sL"),
    ("JuiceFS", "juicefs auth vol --token @ --access-key x --secret-key y\n", HEX),
    ("Weka", "weka user login admin @ --HOST h\n", HORSE),
    ("rich traceback, locals", "│ │ api_key = '@' │ │\n", HORSE),
    ("fish", "set -gx MY_API_KEY @\n", HORSE),
    ("nushell", '$env.MY_API_KEY = "@"\n', HORSE),
    ("csh", "setenv WANDB_API_KEY @\n", HORSE),
    ("Lmod", 'setenv("MY_TOKEN", "@")\n', HORSE),
    ("Apptainer", "apptainer exec --nv --env LANG=C,MY_TOKEN=@ x.sif python t.py\n", HORSE),
    ("Slurm, export", "sbatch --export=ALL,MY_SECRET=@,X=1 job.sh\n", HORSE),
    ("PBS", "qsub -v MY_PASSWORD=@,X=1 job.pbs\n", HORSE),
    ("HTCondor", 'environment = "LANG=C MY_TOKEN=@ X=1"\n', HORSE),
    ("Hydra, override", "python train.py +trainer.logger.init.api_key=@ seed=1\n", HORSE),
    ("argparse", "Namespace(lr=0.1, hub_token='@', seed=1)\n", HORSE),
    ("httpx, bytes", "request headers: [(b'host', b'h'), (b'x-api-key', b'@')]\n", HORSE),
    ("gRPC, metadata", "metadata=(('authorization', 'Bearer @'), ('x', 'y'))\n", MIXED),
    ("docker inspect", '"Env": [\n  "PATH=/usr/bin",\n  "MY_SECRET=@"\n]\n', HORSE),
    ("kubectl describe", "    Environment:\n      MY_DB_PASSWORD:  @\n      LANG:  C\n", HORSE),
    ("compose, list", "environment:\n  - MY_TOKEN=@\n  - LANG=C\n", HORSE),
    ("journald, command line", "_CMDLINE=/usr/bin/serve --admin-api-key=@ --port 1\n", HORSE),
    ("xtrace", "++ export MY_PASSWORD=@\n", HORSE),
    ("printenv -0", "LANG=C\0MY_PASSWORD=@\0TERM=x\0", HORSE),
    ("Jinja of chat", "{'role': 'system', 'content': 'your password is: @'}\n", HORSE),
    ("Accelerate, tracker", "init_kwargs: {'comet_ml': {'api_key': '@'}}\n", HORSE),
    ("Ray, runtime_env", "runtime_env={'env_vars': {'LANG': 'C', 'MY_TOKEN': '@'}}\n", HORSE),
    ("Cloudflare R2", "R2_SECRET=@\n", HEX + HEX),
    ("Buildkite", "x @\n", "bkua_" + HEX + "9b2f61d0"),
    ("GCP, workload", '"credential_source": {"headers": {"Authorization": "@"}}\n', MIXED),
    ("Anyscale", "x @\n", "aph0_" + MIXED),
    ("Moonshot", "MOONSHOT=@\n", "sk-" + MIXED + "abcdefgh"),
    ("Zhipu", "ZAI_API_KEY=@\n", HEX + "." + "q8Zr1vT5nB3xW7yK"),
    ("flyte", "flytectl config: clientSecretLocation: x\nclient_secret: @\n", LOWER),
    ("S3 Express", "x-amz-s3session-token: @\n", UPPER + UPPER + BASE),
    ("Ray, file", "~/.ray/auth_token: @\n", HEX + HEX),
)  # fmt: skip
SEALED = ALL[2::3]
OPENED = tuple(row for row in ALL if row not in SEALED)

if __name__ == "__main__":
    told_of(OPENED, SEALED)
