"""What docs/training.md shows exists under the names it shows."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()


def test_every_argument_of_the_shown_script_exists() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    tree = ast.parse(code)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    names: dict[str, Any] = {}
    exec(compile(ast.Module(imports, []), "docs/training.md", "exec"), names)  # noqa: S102 - the project's own page
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    ]
    assert len(calls) >= 6
    for call in calls:
        assert isinstance(call.func, ast.Name)
        keywords = {str(keyword.arg): None for keyword in call.keywords}
        inspect.signature(names[call.func.id]).bind(*call.args, **keywords)
    methods = {
        node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert {"train", "save_hugging_face"} <= methods
    assert all(hasattr(names["Trainer"], method) for method in methods)


def test_the_page_names_the_options_there_are() -> None:
    from worker_agent import Trainer  # noqa: PLC0415 - brings torch

    documented = set(re.findall(r"`(\w+_(?:per_iteration|options|timeout_s|dtype|url))`", PAGE))
    assert documented
    assert documented <= set(inspect.signature(Trainer).parameters)
