"""An evaluation reads one file or several, as a configuration gives them."""

from omegaconf import OmegaConf

from retool_mcore.data.prepare import write_problems
from retool_mcore.data.records import Problem
from retool_mcore.data.schema import rows_of


def test_several_files_are_read_in_order(tmp_path):
    for name in ("a", "b"):
        write_problems([Problem(name, "Q?", "1", 0)], tmp_path / name, template="tiny", split="test")
    several = OmegaConf.create([str(tmp_path / "b"), str(tmp_path / "a")])
    assert [row["data_source"] for row in rows_of(several)] == ["b", "a"]
    assert [row["data_source"] for row in rows_of(str(tmp_path / "a"))] == ["a"]
