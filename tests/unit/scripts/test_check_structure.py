"""`scripts/check_structure.py` finds circles, sizes and names in small made-up trees."""

import sys
from pathlib import Path

import pytest
from scripts.check_structure import FOREIGN, MAX_MODULES, ROOT, Finding, Tree, circles, findings, main, measured


def tree(root: Path, files: dict[str, str]) -> Tree:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(root)


def over(source: str) -> list[tuple[str, int]]:
    return [(each.check, each.size) for each in measured("sdk/a.py", source) if each.fails]


def attributes(made: Tree) -> dict[str, int]:
    return {
        each.where.rpartition(" ")[2]: each.size for each in findings(made) if each.check == "attributes of a class"
    }


@pytest.mark.parametrize(
    "back",
    [
        "from p import a",
        "from p.a import A",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import A",
        "def f():\n    import p.a",
        "from . import a",
        "from .a import A",
    ],
)
def test_a_circle_is_found_however_it_is_imported(tmp_path: Path, back: str) -> None:
    files = {"sdk/p/__init__.py": "", "sdk/p/a.py": "from p.b import B", "sdk/p/b.py": back}
    assert circles(tree(tmp_path, files).graph()) == [["p.a", "p.b"]]


def test_imports_in_one_direction_are_no_circle(tmp_path: Path) -> None:
    files = {"sdk/p/a.py": "import p.b\nimport p.c", "sdk/p/b.py": "import p.c", "sdk/p/c.py": "import os"}
    assert circles(tree(tmp_path, files).graph()) == []


def test_a_function_of_51_lines_is_too_long() -> None:
    assert over("def f():\n" + "    pass\n" * 50) == [("lines of a function", 51)]
    assert over("def f():\n" + "    pass\n" * 49) == []


def test_a_file_of_401_lines_is_listed() -> None:
    assert [(each.check, each.size) for each in measured("a.py", "\n" * 401) if each.is_over] == [
        ("lines of a file", 401)
    ]


@pytest.mark.parametrize(
    ("signature", "size"), [("a, b, c, d, e, f, g, h, i", 9), ("self, a, b, c, d, e, f, g, *, h", 0)]
)
def test_parameters_are_counted_without_self(signature: str, size: int) -> None:
    assert over(f"def f({signature}): pass") == ([("parameters", size)] if size else [])


@pytest.mark.parametrize(
    ("expression", "size"),
    [
        ("x[2]", 2),
        ("f()[3]", 3),
        ("x[1]", 0),
        ("x[-2]", 0),
        ("x[2:]", 0),
        ("x['a']", 0),
        ("Path(__file__).parents[2]", 0),
        ("x.rpartition('-')[2]", 0),
        ("x.partition(f(1))[2]", 0),
        ("x.partition('-')[0].split()[2]", 2),
    ],
)
def test_an_element_has_a_name_instead_of_a_number_above_1(expression: str, size: int) -> None:
    assert over(expression) == ([("index of an element", size)] if size else [])


def test_attributes_of_bases_in_the_tree_are_counted(tmp_path: Path) -> None:
    files = {
        "sdk/p/a.py": "class A(Foreign):\n    x: int\n    def f(self): self.y = self.z = 1",
        "sdk/p/b.py": "from p.a import A as Base\nclass B(Base):\n    x = 1\n    w: int",
        "sdk/p/d.py": "from p import a\nclass C(a.A): pass",
        "sdk/p/c.py": "import msgspec\nclass R(msgspec.Struct):\n    x: int",
    }
    assert attributes(tree(tmp_path, files)) == {"A": 3, "B": 4, "C": 3}


def test_modules_of_a_folder_are_counted(tmp_path: Path) -> None:
    made = tree(tmp_path, {f"sdk/p/m{number}.py": "" for number in range(MAX_MODULES + 1)})
    assert Finding("modules of a folder", "sdk/p", MAX_MODULES + 1, MAX_MODULES) in list(findings(made))
    assert not any(each.fails for each in findings(made)), "a large folder is looked at, and fails nothing"


def test_foreign_functions_exist() -> None:
    for entry in FOREIGN:
        path, _, name = entry.partition(" ")
        assert f"def {name}(" in (ROOT / path).read_text()


@pytest.mark.parametrize(("source", "status", "last"), [("", 0, "ok"), ("x = y[2] + y[3]", 1, "faults: 2")])
def test_the_last_line_says_whether_there_are_faults(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    source: str,
    status: int,
    last: str,
) -> None:
    tree(tmp_path, {"sdk/p/a.py": source})
    monkeypatch.setattr(sys, "argv", ["check_structure.py"])
    assert main(tmp_path) == status
    assert capsys.readouterr().out.splitlines()[-1] == last
