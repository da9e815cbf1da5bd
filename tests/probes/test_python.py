"""The interpreter, its packages and its torch, from files: real interpreters where this machine has them, invented ones elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtune_sys.host import queries
from torchtune_sys.host.live import LiveHost
from torchtune_sys.host.live_queries import python as answers
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.host.tree import below
from torchtune_sys.model import codec
from torchtune_sys.model.facts.python import LiveTorch, PythonFacts
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why, absent
from torchtune_sys.probes.python import cuda_libraries, distributions, interpreter
from torchtune_sys.probes.python import probe as python

CHILD = Path(answers.__file__).parents[1] / "children/interpreter_child.py"
PYENV = Path.home() / ".pyenv/versions"
REAL = [sys.executable, "/usr/bin/python3", *(str(path) for path in sorted(PYENV.glob("*/bin/python")))]
VENV = "/srv/env"
SITE = f"{VENV}/lib/python3.12/site-packages"
ANSWER: dict[str, Any] = {
    "executable": f"{VENV}/bin/python3",
    "version": "3.12.3",
    "implementation": "cpython",
    "machine": "x86_64",
    "free_threaded": False,
    "prefix": VENV,
    "base_prefix": "/usr",
    "path": ["/usr/lib/python3.12", SITE],
    "user_site": None,
    "glibc": "2.39",
    "abiflags": "",
}
VERSION_PY = "from typing import Optional\n__version__ = '2.5.1+cu124'\ndebug = False\ncuda: Optional[str] = '12.4'\nhip: Optional[str] = None\n"


def host(files: dict[str, Any] | None = None, env: dict[str, str] | None = None, **answer: Any) -> RecordedHost:
    return RecordedHost(
        {
            "files": {f"{VENV}/bin/python3": "", **(files or {})},
            "env": {"PATH": f"{VENV}/bin:/usr/bin", **(env or {})},
            "answers": {f"interpreter:{VENV}/bin/python3": {**ANSWER, **answer}, "cwd": "/srv"},
        },
        "recording",
    )


def probe(files: dict[str, Any] | None = None, env: dict[str, str] | None = None, **answer: Any) -> PythonFacts:
    return python.probe(host(files, env, **answer), Workload())


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


def test_torch_and_its_libraries_are_found() -> None:
    found = probe(
        {
            f"{SITE}/torch/version.py": VERSION_PY,
            f"{SITE}/torch-2.5.1.dist-info/METADATA": "Name: torch\nRequires-Dist: numpy\n",
            f"{SITE}/torch-2.5.1.dist-info/WHEEL": "Tag: cp312-cp312-manylinux1_x86_64\n",
            f"{SITE}/nvidia_nccl_cu12-2.21.5.dist-info/INSTALLER": "pip",
            f"{SITE}/nvidia_nccl_cu11-2.14.3.dist-info/INSTALLER": "pip",
            f"{SITE}/requests-2.0.dist-info/INSTALLER": "pip",
            f"{SITE}/~umpy-1.26.4.dist-info/INSTALLER": "pip",
        }
    )
    assert not isinstance(found.torch, Missing) and not isinstance(found.distributions, Missing)
    assert (found.torch.version, found.torch.cuda, found.torch.nccl) == ("2.5.1+cu124", "12.4", "2.21.5")
    assert [item.name for item in found.distributions] == ["nvidia-nccl-cu11", "nvidia-nccl-cu12", "torch"]
    assert found.distributions[-1].tags == ("cp312-cp312-manylinux1_x86_64",)
    assert found.leftovers == (f"{SITE}/~umpy-1.26.4.dist-info",)


def test_metadata_without_its_package_is_a_failure_not_an_absence() -> None:
    found = probe({f"{SITE}/torch-2.5.1.dist-info/METADATA": "Name: torch\n"})
    assert isinstance(found.torch, Missing) and found.torch.why is Why.FAILED


def test_a_directory_that_an_uninstall_left_is_no_torch() -> None:
    assert absent(probe({f"{SITE}/torch/lib/stray.so": ""}).torch)


def test_an_unlistable_site_directory_is_not_an_empty_one() -> None:
    recording = {"dirs": {SITE: {"error": "denied"}}, "files": {f"{VENV}/bin/python3": ""}, "env": {"PATH": f"{VENV}/bin"}}
    found = python.probe(RecordedHost({**recording, "answers": {f"interpreter:{VENV}/bin/python3": ANSWER}}, "r"), Workload())
    assert isinstance(found.torch, Missing) and found.torch.why is Why.DENIED
    assert isinstance(found.distributions, Missing)


@pytest.mark.parametrize(
    ("uid", "closed", "why"), [(1000, "/opt/other", Why.ABSENT), (0, "/opt/other", Why.DENIED), (1000, SITE, Why.DENIED)]
)
def test_what_python_itself_passes_over_hides_no_torch(uid: int, closed: str, why: Why) -> None:
    path = ["/opt/other", *ANSWER["path"]]
    recording = {
        "dirs": {SITE: [], closed: {"error": "denied"}},
        "files": {f"{VENV}/bin/python3": ""},
        "env": {"PATH": f"{VENV}/bin"},
    }
    answers = {f"interpreter:{VENV}/bin/python3": {**ANSWER, "path": path}, "uid": {"uid": uid}}
    found = python.probe(RecordedHost({**recording, "answers": answers}, "r"), Workload())
    assert isinstance(found.torch, Missing) and found.torch.why is why
    assert isinstance(found.distributions, Missing) is (why is Why.DENIED)


@pytest.mark.parametrize(
    ("files", "path", "hidden"),
    [
        (("random.py",), ("/w", "/usr/lib/python312.zip"), ("/w/random.py",)),
        (("random.py",), ("/w/", "/usr/lib/python3.12"), ("/w/random.py",)),
        (("random.py",), ("/usr/lib/python3.12", "/w"), ()),  # Python's own comes first
        (("random.py",), ("/w",), ()),  # a report that tells no order
        (("queue/__init__.py",), ("/w", "/usr/lib/python3.12"), ("/w/queue/__init__.py",)),
        (
            ("queue/notes.txt", "train.py", "test.py", "random.pyc"),
            ("/w", "/usr/lib/python3.12"),
            (),
        ),  # a folder alone hides nothing
        (("torch.py", "numpy/__init__.py"), ("/w", "/usr/lib/python3.12"), ("/w/numpy/__init__.py", "/w/torch.py")),
        (("torch/__init__.py", "torch/version.py", "numpy/__init__.py", "numpy/version.py"), ("/w", "/usr/lib/python3.12"), ()),
        (("torch/__init__.py", "numpy.py"), ("/usr/lib/python3.12", "/w"), ()),
    ],
)
def test_files_that_hide_a_module_which_torch_needs(
    files: tuple[str, ...], path: tuple[str, ...], hidden: tuple[str, ...]
) -> None:
    found = probe({f"/w/{name}": "" for name in files}, path=[*path, SITE])
    assert tuple(sorted(found.hiding)) == hidden


@pytest.mark.parametrize(
    ("files", "hidden"),
    [
        (("sympy.py", "typing_extensions.py", "optree.py"), ("/w/sympy.py", "/w/typing_extensions.py")),  # optree is an extra
        (("typing_extensions.py", "typing_extensions-4.12.dist-info/METADATA", "sympy/__init__.py"), ()),
    ],
)
def test_files_that_hide_a_package_which_torch_requires(files: tuple[str, ...], hidden: tuple[str, ...]) -> None:
    metadata = (
        'Name: torch\nRequires-Dist: typing-extensions>=4.10.0\nRequires-Dist: sympy\nRequires-Dist: optree; extra == "optree"\n'
    )
    there = {f"{SITE}/torch-2.13.0.dist-info/METADATA": metadata, **{f"/w/{name}": "" for name in files}}
    found = probe(there, path=["/w", "/usr/lib/python3.12", SITE])
    assert tuple(sorted(found.hiding)) == hidden


def test_an_environment_without_its_pyvenv_cfg_is_told_from_one_without_torch() -> None:
    """Its python then is the base Python, whose packages are others."""
    torch = {f"{SITE}/torch/version.py": VERSION_PY}
    lost = {"prefix": "/usr", "path": ["/usr/lib/python3.12", "/usr/lib/python3/dist-packages"]}
    found = probe(torch, **lost).torch
    assert isinstance(found, Missing) and found.why is Why.FAILED and "it has no pyvenv.cfg" in found.detail
    found = probe({**torch, f"{VENV}/pyvenv.cfg": "home = /usr/bin"}, **lost).torch
    assert isinstance(found, Missing) and found.why is Why.FAILED and "PYTHONHOME" in found.detail
    assert absent(probe({}, **lost).torch), "there is no torch in the environment"
    assert absent(probe({}, prefix=VENV).torch), "nor here"


def test_conda_packages() -> None:
    found = probe({f"{VENV}/conda-meta/pytorch-2.1.0-py3.11_cuda12.1_cudnn8.9.2_0.json": "{}"})
    assert found.conda is True and not isinstance(found.distributions, Missing)
    assert [(item.name, item.version, item.build) for item in found.distributions] == [
        ("pytorch", "2.1.0", "py3.11_cuda12.1_cudnn8.9.2_0")
    ]


def test_the_library_path_and_the_toolkits() -> None:
    found = probe(
        {
            "/opt/cuda/lib64/libcudnn.so.9": "",
            "/opt/cuda/lib64/libcudnn.so.9.1.0": "",
            "/opt/cuda/lib64/libcudnn_graph.so.9": "",
            "/other/libcudnn.so.9.5.1": "",
            "/usr/local/cuda-12.4/version.json": '{"cuda": {"version": "12.4.1"}}',
            "/usr/local/cuda-12.4/bin/nvcc": "",
        },
        {"LD_LIBRARY_PATH": "/opt/cuda/lib64:/other:relative", "CUDA_HOME": "/usr/local/cuda-12.4"},
    )
    assert not isinstance(found.shadowing, Missing)
    assert [(item.path, item.version) for item in found.shadowing] == [("/opt/cuda/lib64/libcudnn.so.9", "9.1.0")]
    assert found.toolkits == ("/usr/local/cuda-12.4 (12.4.1)",)
    assert (found.nvcc, found.nvcc_path) == ("12.4.1", "/usr/local/cuda-12.4/bin/nvcc")


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
