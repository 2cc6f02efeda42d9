"""The table beside another file replaces none that is not of its kind."""

from pathlib import Path

import pytest

from t2t.commands.eval import check_report
from t2t.commands.features import features
from t2t.errors import UserError
from t2t.table_beside import OF_FEATURES, OF_REPORT, table_beside


@pytest.mark.parametrize("columns", [OF_REPORT, OF_FEATURES])
def test_an_earlier_table_of_its_kind_is_replaced(
    tmp_path: Path, columns: tuple[str, ...]
) -> None:
    table = tmp_path / "mine.csv"
    assert table_beside(tmp_path / "mine.html", columns) == table
    for end in ("\n", "\r\n", "", "\nmistake,val\n"):
        table.write_bytes(f"{','.join(columns)}{end}".encode())
        assert table_beside(tmp_path / "mine.html", columns) == table
    table.write_text("")
    assert table_beside(tmp_path / "mine.html", columns) == table


@pytest.mark.parametrize("text", ["path,label\n1.jpg,cat\n", "path,label,classes\n"])
def test_another_table_stays(tmp_path: Path, text: str) -> None:
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(UserError, match="another file of that name"):
        check_report(str(tmp_path / "labels.html"))
    with pytest.raises(UserError, match="another file of that name"):
        features("builtin", out=str(tmp_path / "labels.npy"))
    assert (tmp_path / "labels.csv").read_text() == text
