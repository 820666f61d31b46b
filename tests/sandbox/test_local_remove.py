"""Removing a program's folder when the program made it hard to remove."""

import os

from retool_mcore.sandbox.local.remove import remove_tree


def test_a_tree_deeper_than_any_path(tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    folder = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=folder)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
        deeper = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = deeper
    os.close(folder)
    remove_tree(str(top))
    assert os.listdir(tmp_path) == []


def test_what_links_lead_to_stays(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("1")
    outside.chmod(0o500)
    top = tmp_path / "top"
    (top / "inside").mkdir(parents=True)
    (top / "link").symlink_to(outside)
    (top / "inside" / "link").symlink_to(outside)
    os.mkfifo(top / "inside" / "pipe")
    before = os.listdir(outside), outside.stat().st_mode
    remove_tree(str(top))
    assert os.listdir(tmp_path) == ["outside"] and (os.listdir(outside), outside.stat().st_mode) == before


def test_closed_folders_and_equal_names(tmp_path):
    top = tmp_path / "top"
    for name in ("a", "b"):
        (top / name / "same" / "same").mkdir(parents=True)
        (top / name / "same" / "file").write_text("1")
        (top / name / "same").chmod(0)
        (top / name).chmod(0)
    top.chmod(0)
    remove_tree(str(top))
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_gone(tmp_path):
    remove_tree(str(tmp_path / "none"))


def test_a_link_in_the_place_of_the_folder_is_neither_followed_nor_changed(tmp_path):
    """A program at level process renames its folder and leaves a link: root changed the mode of what it leads to."""
    target = tmp_path / "target"
    target.mkdir(mode=0o500)
    (tmp_path / "run").symlink_to(target)
    remove_tree(str(tmp_path / "run"))
    assert target.stat().st_mode & 0o777 == 0o500
