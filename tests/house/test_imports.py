"""Imports go down only: cli > commands > lab > error_analysis > … > config."""

import ast
import subprocess
import sys
from pathlib import Path

import t2t

PACKAGE = Path(t2t.__file__).parent
# Higher may import lower; neighbours on one level may not import each other.
LEVELS = [
    {"cli", "commands", "screen", "__main__"},
    {"lab"},
    {"error_analysis"},
    {"probing", "visualize"},
    {"recipes"},
    {"deployment"},
    {"training"},
    {"serving"},
    {"tasks", "analysis"},
    {"models", "data"},
    {"ops"},
    {"config", "shapes", "errors", "atomic", "cache", "registry", "user_code"}
    | {"sigint", "torchrun", "process_age", "log_level", "table_beside"}
    | {"formatting"},
]
# What `import t2t` runs; it reaches up only when asked.
AT_THE_DOOR = {"__init__", "timm_hook"}
TOP = len(LEVELS) - 1
LEVEL = {
    part: height for height, parts in enumerate(reversed(LEVELS)) for part in parts
}


def part_of(module: str) -> str | None:
    pieces = module.split(".")
    return pieces[1] if pieces[0] == "t2t" and len(pieces) > 1 else None


def imported_modules(path: Path) -> list[str]:
    """The modules that a file imports anywhere, within functions too."""
    modules: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "t2t":
            modules += [f"t2t.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.append(node.module)
    return modules


def own_part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_go_down_only() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        own = own_part(path)
        if own in AT_THE_DOOR:
            continue
        for module in imported_modules(path):
            part = part_of(module)
            if part is None or part == own or part not in LEVEL:
                continue
            level, other = LEVEL[own], LEVEL[part]
            same_floor = level == other and level in (0, TOP)
            if other >= level and not same_floor:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {module}")
    assert wrong == []


def test_the_core_never_imports_the_lab() -> None:
    paths = PACKAGE.rglob("*.py")
    core = [path for path in paths if own_part(path) not in ("lab", "commands")]
    assert PACKAGE / "__init__.py" in core
    assert PACKAGE / "cli.py" in core
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {module}"
        for path in core
        for module in imported_modules(path)
        if part_of(module) == "lab"
    ]
    assert wrong == []


def test_every_part_has_its_level() -> None:
    parts = {
        path.name.removesuffix(".py")
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert parts - LEVEL.keys() - AT_THE_DOOR == set()


def test_kernels_do_not_import_pytorch() -> None:
    # A process that only compiles them starts in a fraction of a second.
    program = (
        "import importlib, sys\n"
        "from t2t.training.compile_server import KERNELS, PACKAGE\n"
        "for path in KERNELS.glob('*.py'):\n"
        "    if path.stem not in ('__init__', 'launch'):\n"
        "        importlib.import_module(PACKAGE + path.stem)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
