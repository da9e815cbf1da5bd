"""The interpreter, its packages and its torch, from files: real interpreters where this machine has them, invented ones elsewhere."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invented_environment import ANSWER, SITE, VENV, VERSION_PY, host, probe

from torchtune_sys.host import queries
from torchtune_sys.host.live import LiveHost
from torchtune_sys.host.live_queries import python as answers
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.host.tree import below
from torchtune_sys.model import codec
from torchtune_sys.model.facts.python import LiveTorch
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.python import cuda_libraries, distributions, interpreter
from torchtune_sys.probes.python import probe as python

CHILD = Path(answers.__file__).parents[1] / "children/interpreter_child.py"
PYENV = Path.home() / ".pyenv/versions"
REAL = [sys.executable, "/usr/bin/python3", *(str(path) for path in sorted(PYENV.glob("*/bin/python")))]


@pytest.mark.parametrize("path", REAL)
def test_the_child_runs_in_every_interpreter_of_this_machine(path: str) -> None:
    if not os.access(path, os.X_OK):
        pytest.skip(f"no {path}")
    output = subprocess.run([path, "-c", CHILD.read_text()], capture_output=True, text=True, cwd="/", timeout=60)
    assert output.returncode == 0, output.stderr
    found = codec.as_fact(codec.loads(output.stdout), interpreter.InterpreterAnswer, path)
    assert not isinstance(found, Missing)
    told = subprocess.run([path, "-c", "import sys; print(sys.version.split()[0])"], capture_output=True, text=True, timeout=60)
    assert found.version == told.stdout.strip().rstrip("+")
    assert all(entry.startswith("/") for entry in found.path)


def test_what_the_child_prints_is_ascii_whatever_the_paths() -> None:
    source = CHILD.read_text().replace('__name__ == "__main__"', "False")
    code = source + "\nsys.stdout.write(encoded({u'p': [u'/h\\xf6me/\\u4e2d', u'\\U0001f600', u'\\udc80', u'a\"\\\\\\n']}))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert output.stdout.isascii()
    assert codec.loads(output.stdout) == {"p": ["/höme/中", "😀", "\ufffd", 'a"\\\n']}


def test_the_first_python_on_path_is_judged_not_ours(tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.symlink_to(sys.executable)
    assert interpreter.chosen(LiveHost(), {"PATH": f"/nonexistent:{tmp_path}:/usr/bin"}, None) == str(other)


def test_a_directory_called_python3_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a/python3").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/python3").touch()
    assert interpreter.chosen(LiveHost(), {"PATH": f"{tmp_path}/a:{tmp_path}/b"}, None) == f"{tmp_path}/b/python3"


def test_an_environment_that_lost_its_base_is_still_the_one_that_is_meant(tmp_path: Path) -> None:
    """The shell passes over it, and "no torch in /usr/bin/python3" is not what went wrong."""
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/python3").symlink_to(tmp_path / "base/python3.9")
    path, variables = f"{tmp_path}/env/bin/python3", {"PATH": f"{tmp_path}/env/bin:{Path(sys.executable).parent}"}
    assert interpreter.chosen(LiveHost(), variables, None) != path, "a link that leads nowhere, in no environment"
    (tmp_path / "env/pyvenv.cfg").write_text(f"home = {tmp_path}/base\n")
    assert interpreter.chosen(LiveHost(), variables, None) == path
    answer = answers.interpreter(path, 5)
    assert isinstance(answer, Missing) and answer.detail == f"it leads to {tmp_path}/base, which is gone"


def test_an_environment_whose_base_this_user_may_not_reach_is_judged() -> None:
    path, base = f"{VENV}/bin/python3", "/root/base/bin/python3"
    seen = RecordedHost(
        {
            "files": {f"{VENV}/pyvenv.cfg": "home = /root/base/bin", base: {"error": "denied"}, "/usr/bin/python3": ""},
            "links": {path: base},
            "stats": {path: {"error": "denied"}, base: {"error": "denied"}},
        },
        "recording",
    )
    for wanted in (None, VENV, path):
        assert interpreter.chosen(seen, {"PATH": f"{VENV}/bin:/usr/bin"}, wanted) == path


def test_an_environment_may_be_named_by_its_directory() -> None:
    assert interpreter.chosen(host(), {"PATH": ""}, "env") == f"{VENV}/bin/python3"
    assert interpreter.chosen(host(), {"PATH": ""}, f"{VENV}/bin/python3") == f"{VENV}/bin/python3"


@pytest.mark.parametrize(
    ("files", "env", "wanted"),
    [
        ({"/p/version": "3.11.7\n"}, {}, "/p/versions/3.11.7/bin/python3"),
        ({"/p/version": "3.11.7\n", "/srv/.python-version": "3.12\n"}, {}, "/p/versions/3.12.10/bin/python3"),
        ({"/p/version": "3.11.7\n"}, {"PYENV_VERSION": "3.12.9"}, "/p/versions/3.12.9/bin/python3"),
        ({"/p/version": "system\n"}, {}, "/usr/bin/python3"),
        ({"/p/version": "3.13.0\n"}, {}, "/p/shims/python3"),
        ({}, {}, "/p/shims/python3"),
        ({"/p/version": "3.11.7\n", "/srv/.python-version": "../../evil\n"}, {}, "/p/shims/python3"),
        ({"/p/version": "3.11.7\n"}, {"PYENV_VERSION": "..:../../evil:/evil:.:3.12.9"}, "/p/versions/3.12.9/bin/python3"),
    ],
)
def test_pyenv_shims_are_seen_through(files: dict[str, str], env: dict[str, str], wanted: str) -> None:
    there = [f"/p/versions/{version}/bin/python3" for version in ("3.11.7", "3.12.9", "3.12.10", "../../evil", "..", "/evil")]
    everything = {**dict.fromkeys([*there, "/p/shims/python3", "/usr/bin/python3"], ""), **files}
    shimmed = RecordedHost({"files": everything, "answers": {"cwd": "/srv/deep"}}, "recording")
    assert interpreter.chosen(shimmed, {"PATH": "/p/shims:/usr/bin", **env}, None) == wanted


UVX = "/home/ada/.cache/uv/archive-v0/z0lM"
UV_TOOL = "/home/ada/.local/share/uv/tools/torchtune-sys"


@pytest.mark.parametrize(
    ("prefix", "files", "path", "wanted"),
    [
        (UVX, [], "/train/bin", "/train/bin/python3"),
        (UV_TOOL, ["uv-receipt.toml"], "/train/bin", "/train/bin/python3"),
        (UVX, [], "", f"{UVX}/bin/python3"),
        (UVX, ["lib/python3.12/site-packages/torch/__init__.py"], "/train/bin", f"{UVX}/bin/python3"),
        (UV_TOOL, [], "/train/bin", f"{UV_TOOL}/bin/python3"),
        ("/home/ada/.cache/uv/builds-v0/.tmpX", [], "/train/bin", "/home/ada/.cache/uv/builds-v0/.tmpX/bin/python3"),
    ],
    ids=["uvx", "uv tool install", "no other", "uvx --with torch", "not of uv", "uv run --with"],
)
def test_the_environment_that_uvx_makes_for_the_tool_is_not_the_one_that_trains(
    prefix: str, files: list[str], path: str, wanted: str
) -> None:
    there = [f"{prefix}/{name}" for name in ("bin/python3", "bin/python", *files)]
    found = RecordedHost({"files": dict.fromkeys([*there, "/train/bin/python3"], "")}, "recording")
    assert interpreter.chosen(found, {"PATH": f"{prefix}/bin:{path}"}, None) == wanted


def test_a_mounted_root_is_read_from_its_files(tmp_path: Path) -> None:
    site = tmp_path / "srv/env/lib/python3.12/site-packages"
    (site / "torch").mkdir(parents=True)
    (tmp_path / "usr").mkdir()
    (tmp_path / "srv/env/bin").mkdir()
    (tmp_path / "srv/env/bin/python3").touch()
    (tmp_path / "srv/env/pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.3\n")
    (site / "torch/version.py").write_text(VERSION_PY)
    (site / "torch-2.5.1.dist-info").mkdir()
    found = python.probe(below(str(tmp_path)), Workload(python="/srv/env"))
    assert found.version == "3.12.3"
    assert not isinstance(found.torch, Missing) and found.torch.cuda == "12.4"
    assert isinstance(found.glibc, Missing) and found.glibc.why is Why.NOT_RECORDED


@pytest.mark.parametrize("answer", [None, [], "x", {"version": 3}, {**ANSWER, "path": "x"}, {**ANSWER, "glibc": 2}])
def test_an_answer_that_is_none_is_unparsed(answer: Any) -> None:
    found = codec.as_fact(answer, interpreter.InterpreterAnswer, "python")
    assert isinstance(found, Missing) and found.why is Why.UNPARSED


def live(answer: Any) -> LiveTorch | Missing:
    return python.live(RecordedHost({"answers": {f"{queries.LIVE_TORCH}:python": answer}}, "made"), "python")


@pytest.mark.parametrize("answer", [None, [], {"version": "2"}, {"version": "2.1", "cuda_available": "yes"}])
def test_a_live_answer_that_is_none_is_unparsed(answer: Any) -> None:
    assert isinstance(live(answer), Missing)


def test_an_interpreter_that_hangs_ends_at_its_deadline(tmp_path: Path) -> None:
    hanging = tmp_path / "python3"
    hanging.write_text("#!/bin/sh\nsleep 60\n")
    hanging.chmod(0o755)
    found = answers.interpreter(str(hanging), 0.3)
    assert isinstance(found, Missing) and found.why is Why.TIMEOUT


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 3", Why.FAILED),
        ("kill -SEGV $$", Why.FAILED),
        ("echo hello", Why.UNPARSED),
        ("true", Why.UNPARSED),
        ("echo '[1]'", Why.UNPARSED),
    ],
)
def test_an_interpreter_that_is_none(tmp_path: Path, script: str, why: Why) -> None:
    other = tmp_path / "python3"
    other.write_text(f"#!/bin/sh\n{script}\n")
    other.chmod(0o755)
    found = answers.interpreter(str(other), 10)
    assert isinstance(found, Missing) and found.why is why


def test_what_sitecustomize_prints_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('welcome')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/nowhere")
    found = answers.interpreter(os.path.realpath(f"/proc/{os.getpid()}/exe"), 60)
    assert isinstance(found, dict) and str(tmp_path) in found["path"]


def test_the_encoding_of_the_streams_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "utf-16")
    found = python.probe(LiveHost(), Workload(python=sys.executable))
    assert found.executable == sys.executable
    assert found.version == ".".join(map(str, sys.version_info[:3]))


def test_what_fails_at_the_start_of_python_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An editable installation whose finder is gone, and a site's own hook: Python prints it and goes on."""
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    (packages,) = env.glob("lib/python3*/site-packages")
    clean = answers.interpreter(f"{env}/bin/python3", 60)
    assert isinstance(clean, dict) and clean["start_errors"] == []
    (packages / "__editable__.mine.pth").write_text("import __editable___mine_finder; __editable___mine_finder.install()\n")
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('hook')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = answers.interpreter(f"{env}/bin/python3", 60)
    assert isinstance(found, dict)
    pth, hook = found["start_errors"]
    assert pth == f"line 1 of {packages}/__editable__.mine.pth: ModuleNotFoundError: No module named '__editable___mine_finder'"
    assert hook == "sitecustomize: RuntimeError: hook"


HOSTILE = ("", "\0\0", "\ufffd" * 100, "=" * 10_000, "{" * 5000, "[[[", "-1", "9" * 5000)


@pytest.mark.parametrize("content", [*HOSTILE, {"error": "denied"}, {"error": "failed"}])
def test_hostile_files_give_missing_not_exceptions(content: Any) -> None:
    names = (
        "torch/version.py",
        "torch-2.5.1.dist-info/METADATA",
        "torch-2.5.1.dist-info/WHEEL",
        "torch.egg-info/PKG-INFO",
        "-.dist-info/METADATA",
    )
    files = {f"{SITE}/{name}": content for name in names}
    files |= {"/usr/local/cuda-12/version.json": content, "/usr/local/cuda/version.txt": content, f"{VENV}/pyvenv.cfg": content}
    facts = probe(files, {"LD_LIBRARY_PATH": SITE, "CC": "\0"})
    assert isinstance(facts.torch, Missing)
    python.probe(RecordedHost({"files": files, "env": {"PATH": f"{VENV}/bin"}}, "r"), Workload(python=VENV))


def test_a_directory_in_place_of_each_file() -> None:
    files = {
        f"{SITE}/torch/version.py/x": "",
        f"{SITE}/torch-2.5.1.dist-info/METADATA/x": "",
        "/usr/local/cuda/version.json/x": "",
    }
    assert isinstance(probe(files).torch, Missing)


def test_nothing_at_all() -> None:
    found = python.probe(RecordedHost({"complete": False}, "r"), Workload(live=True))
    assert isinstance(found.torch, Missing) and found.torch.why is Why.NOT_RECORDED


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=400))
def test_parsers_survive_any_text(text: str) -> None:
    python.parse_torch(text, "/x", ())
    python.parse_version_py(text)
    distributions.parse_headers(text)
    distributions.parse_folder(text)
    interpreter.parse_pyvenv(text)
    cuda_libraries.parse_version_json(text)
    cuda_libraries.parse_libraries("/x", (text, f"libcudnn.so.{text}", f"libcudnn{text}"))
    cuda_libraries.library_path({"LD_LIBRARY_PATH": text})


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=8), x, max_size=3),
    )
)
def test_answers_of_any_shape_are_survived(answer: Any) -> None:
    codec.as_fact(answer, interpreter.InterpreterAnswer, "x")
    live(answer)


@pytest.mark.slow
def test_live_torch() -> None:
    path = os.environ.get("TORCHTUNE_SYS_TEST_PYTHON", "")
    if not path or subprocess.run([path, "-c", "import torch"], capture_output=True, timeout=120).returncode != 0:
        pytest.skip("TORCHTUNE_SYS_TEST_PYTHON names no interpreter that can import torch")
    told = subprocess.run([path, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, timeout=120)
    found = python.probe(LiveHost(), Workload(python=path, live=True))
    assert not isinstance(found.live, Missing) and not isinstance(found.torch, Missing)
    assert found.live.version == found.torch.version == told.stdout.strip()
    assert found.torch.source == "live"
    assert f"{queries.LIVE_TORCH}" == "live-torch"


def test_modules_that_are_part_of_the_interpreter_are_found() -> None:
    """python-build-standalone has _ctypes within it, pyenv's Python beside it or, without libffi's headers, not at all."""
    child = runpy.run_path(str(CHILD))
    assert [child["found"](name, []) for name in ("_io", "_nowhere")] == [True, False]
    assert "_ctypes" not in child["look"]()["not_found"]
