"""Files of users: run once, when named or trusted, with errors in one sentence."""

import importlib
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from torch import nn

from t2t import user_code
from t2t.errors import UserError
from t2t.registry import Registry, UnknownName
from t2t.user_code import changed_file, load_code, offer

SHAPES: Registry[type] = Registry("shape", {"square": int})
REGISTER = """
from tests_shapes import SHAPES

@SHAPES.register("{name}")
class Own: ...
"""


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A registry that files can import, and nothing loaded before and after."""

    module = ModuleType("tests_shapes")
    module.SHAPES = SHAPES  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tests_shapes", module)
    monkeypatch.setenv("T2T_CACHE", str(tmp_path / "cache"))
    yield
    for code in [*user_code.LOADED]:
        user_code.unload(code)
    user_code.OFFERED.clear()


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_file_runs_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.py", REGISTER.format(name="round"))
    module = load_code(file)
    assert load_code(str(file)) is module
    write(file, "# A comment.\n" + REGISTER.format(name="round"))
    assert load_code(file) is module
    write(file, REGISTER.format(name="oval"))
    assert load_code(file) is not module
    assert "oval" in SHAPES
    assert "round" not in SHAPES


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = (", r"line 2: '\(' was never closed\.$"),
        ("def f():\n    return nothing\n\nf()", "line 2: NameError: name 'nothing'"),
        ("import absent_module", "line 1: ModuleNotFoundError.* Files beside it"),
        ("raise SystemExit(3)", "line 1: SystemExit: 3"),
        ("\0", "null bytes"),
        (REGISTER.format(name="square"), r"'square' is registered already \(t2t's own"),
        (REGISTER.format(name="no name"), "'no name' cannot be registered"),
    ],
)
def test_a_file_that_fails_is_one_sentence(
    text: str, message: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "mine.py", text)
    with pytest.raises(UserError, match=message) as caught:
        load_code(file)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)
    assert user_code.LOADED == []


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no\.py cannot be read \(No such file"):
        load_code(tmp_path / "no.py")
    with pytest.raises(UserError, match=r"must end in \.py"):
        load_code(tmp_path / "recipe.json")


def test_a_file_that_fails_leaves_nothing_registered(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.py", REGISTER.format(name="round") + "\n1 / 0")
    with pytest.raises(UserError, match="line 7: ZeroDivisionError"):
        load_code(file)
    assert "round" not in SHAPES


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    one = load_code(write(tmp_path / "one" / "mine.py", "x = 1"))
    two = load_code(write(tmp_path / "two" / "mine.py", "x = 2"))
    assert [sys.modules[each.__name__] for each in (one, two)] == [one, two]


def test_names_of_two_files_must_differ(tmp_path: Path) -> None:
    load_code(write(tmp_path / "one.py", REGISTER.format(name="round")))
    other = write(tmp_path / "two.py", REGISTER.format(name="round"))
    with pytest.raises(UserError, match=r"two\.py, line 4: .* already \(one\.py\)"):
        load_code(other)


def test_the_code_of_a_run_runs_when_it_was_run_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = REGISTER.format(name="round")
    kept = write(tmp_path / "run" / "code" / "mine.py", text)
    offer(tmp_path / "run")
    with pytest.raises(UnknownName, match=rf"add --code {kept}\.$"):
        SHAPES.choose("round")
    load_code(write(tmp_path / "mine.py", text))
    user_code.unload(user_code.LOADED[0])
    assert SHAPES.choose("round").__name__ == "Own"
    assert f"{kept} was run for shape='round'." in caplog.text
    with pytest.raises(UnknownName, match="'flat' is not known; allowed: round, sq"):
        SHAPES.choose("flat")


def test_a_changed_file_is_found(tmp_path: Path) -> None:
    load_code(write(tmp_path / "mine.py", "x = 1"))
    write(tmp_path / "run" / "code" / "mine.py", "x = 1  # the same")
    assert changed_file(tmp_path / "run") == ""
    write(tmp_path / "run" / "code" / "mine.py", "x = 2")
    assert changed_file(tmp_path / "run") == "mine.py"


def test_a_notebook_can_define_a_choice_again() -> None:
    for _ in range(2):
        choice = type("Own", (), {"__module__": "__main__"})
        SHAPES.register("again")(choice)
    assert SHAPES.pop("again") is choice
    with pytest.raises(UserError, match="returns a int, not a str"):
        SHAPES.build("square", str)


def test_another_process_can_unpickle_what_a_file_defines(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.py", "class Own:\n    number = 3\n")
    pickled = pickle.dumps(load_code(file).Own())
    sent = pickle.dumps(user_code.files_for(pickled)) + pickled
    assert user_code.files_for(b"") == []
    program = (
        "import pickle, sys; from t2t.user_code import run_files; "
        "file = sys.stdin.buffer; run_files(pickle.load(file)); "
        "print(pickle.load(file).number)"
    )
    file.unlink()
    answer = subprocess.run(
        [sys.executable, "-c", program], input=sent, capture_output=True, check=True
    )
    assert answer.stdout == b"3\n"


def test_an_error_in_a_file_is_explained_where_it_happened(tmp_path: Path) -> None:
    module = load_code(
        write(
            tmp_path / "mine.py", "def f(x):\n    return g(x)\n\n\ndef g(x):\n    1 / x"
        )
    )
    with pytest.raises(ZeroDivisionError) as caught:
        module.f(0)
    expected = f"{tmp_path / 'mine.py'}, line 6: ZeroDivisionError: division by zero."
    assert user_code.explain(caught.value) == expected
    assert user_code.explain(ValueError("elsewhere")) == ""
    with pytest.raises(NotImplementedError) as missing:
        nn.Module()(1)
    expected = 'Module [Module] is missing the required "forward" function.'
    assert user_code.explain(missing.value) == expected


def test_what_a_file_loads_is_taken_back_apart_from_it(tmp_path: Path) -> None:
    inner = write(tmp_path / "inner.py", REGISTER.format(name="round"))
    text = f"import t2t\nt2t.load_code({str(inner)!r})\n1 / 0"
    with pytest.raises(UserError, match="ZeroDivisionError"):
        load_code(write(tmp_path / "outer.py", text))
    assert "round" in SHAPES
    user_code.unload(user_code.LOADED[0])
    assert "round" not in SHAPES


def test_every_file_of_a_run_is_offered_and_one_process_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        kept = write(
            tmp_path / "code" / f"{name}.py", REGISTER.format(name=f"new_{name}")
        )
        load_code(kept)
        user_code.unload(user_code.LOADED[0])
    offer(tmp_path)
    monkeypatch.setattr(user_code, "is_main", lambda: False)
    assert SHAPES.choose("new_b").__name__ == "Own"
    assert caplog.text == ""


def test_arguments_that_do_not_fit_are_named() -> None:
    SHAPES["none"] = lambda: None  # type: ignore[assignment]
    with pytest.raises(
        UserError, match=r"shape='none' is called with 1 argument \(int"
    ):
        SHAPES.build("none", object, 3)
    SHAPES["none"] = lambda number: len(number)  # type: ignore[assignment]
    with pytest.raises(TypeError, match="object of type 'int' has no len"):
        SHAPES.build("none", object, 3)
    del SHAPES["none"]


def test_a_call_that_does_not_fit_a_users_function_names_its_file(
    tmp_path: Path,
) -> None:
    file = write(tmp_path / "mine.py", "class Own:\n    def area(self): ...\n")
    own = load_code(file).Own()
    with pytest.raises(TypeError) as caught:
        own.area(3)
    assert user_code.explain(caught.value) == (
        f"{file}: Own.area() takes 1 positional argument but 2 were given."
    )
    with pytest.raises(TypeError) as caught:
        isinstance(3)  # type: ignore[call-arg]
    assert user_code.explain(caught.value) == ""


def test_a_part_without_the_start_of_its_base_names_its_file(tmp_path: Path) -> None:
    text = (
        "from torch import nn\n\n\nclass Own(nn.Module):\n"
        "    def __init__(self):\n        self.width = 3\n"
    )
    file = write(tmp_path / "mine.py", text)
    own = load_code(file).Own()
    with pytest.raises(AttributeError) as caught:
        nn.Sequential.children(own).__next__()
    assert user_code.explain(caught.value) == (
        f"{file}: 'Own' object has no attribute '_modules': define it, or let __init__ "
        "call super().__init__() first."
    )
    with pytest.raises(AttributeError) as caught:
        nn.Module().width  # noqa: B018
    assert user_code.explain(caught.value) == ""


def test_what_is_no_definition_or_has_no_name_is_refused() -> None:
    with pytest.raises(UserError, match="shape 'round' is a int, and what is regist"):
        SHAPES.register("round")(3)
    with pytest.raises(UserError, match="Own is registered as shape without a name"):

        @SHAPES.register  # type: ignore[arg-type]
        class Own: ...


def test_a_file_may_be_imported_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "imported.py", REGISTER.format(name="round"))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("imported")
    assert SHAPES["round"] is module.Own
    assert load_code(file).Own is SHAPES["round"] is not module.Own
    twice = write(tmp_path / "twice.py", REGISTER.format(name="oval") * 2)
    with pytest.raises(UserError, match=r"'oval' is registered already \(twice\.py\)"):
        load_code(twice)
