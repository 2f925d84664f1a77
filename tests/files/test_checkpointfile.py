import pytest

from hydraplan.errors import InputError
from hydraplan.files.checkpointfile import (
    CHECKPOINTS,
    MANIFEST,
    Checkpoint,
    SavedFile,
    begin_checkpoint,
    checkpoint_folders,
    newest_checkpoint,
    only_checkpoints,
    publish_checkpoint,
    remove_unfinished,
    worker_file,
)

FILE = worker_file(0, 1)


def about(steps, **changes):
    values = {
        "steps": steps,
        "plan_digest": "a" * 64,
        "pp": 1,
        "ranks": 2,
        "ledger_digest": "b" * 64,
        "files": {FILE: SavedFile(size_bytes=3, sha256="c" * 64)},
    }
    return Checkpoint(**values | changes)


def save(run, steps, keep=2):
    (begin_checkpoint(run, steps) / FILE).write_bytes(b"abc")
    return publish_checkpoint(run, about(steps), keep)


def test_the_last_ones_stay_and_the_newest_is_the_one_with_most_steps(tmp_path):
    for steps in (2, 4, 100_000_000):
        save(tmp_path, steps)
    names = [path.name for path in checkpoint_folders(tmp_path)]
    assert names == ["step-00000004", "step-100000000"]
    saved = newest_checkpoint(tmp_path)
    assert saved.about == about(100_000_000)
    assert sorted(p.name for p in saved.path.iterdir()) == [MANIFEST, FILE]
    assert [p.name for p in (tmp_path / CHECKPOINTS).iterdir() if p.name.startswith(".")] == []


def test_one_that_was_never_finished_is_none_and_gives_way(tmp_path):
    assert newest_checkpoint(tmp_path) is None
    save(tmp_path, 2)
    (begin_checkpoint(tmp_path, 4) / FILE).write_bytes(b"ab")
    assert newest_checkpoint(tmp_path).about.steps == 2
    assert only_checkpoints(tmp_path / CHECKPOINTS)
    save(tmp_path, 4)
    assert newest_checkpoint(tmp_path).about.steps == 4
    begin_checkpoint(tmp_path, 6)
    remove_unfinished(tmp_path)
    assert len(list((tmp_path / CHECKPOINTS).iterdir())) == 2


def test_a_folder_with_other_peoples_files_is_not_ours(tmp_path):
    save(tmp_path, 2)
    (tmp_path / CHECKPOINTS / "notes.txt").write_text("mine")
    assert not only_checkpoints(tmp_path / CHECKPOINTS)


def test_a_file_that_a_worker_wrote_elsewhere_is_missed_before_the_checkpoint_has_its_name(
    tmp_path,
):
    begin_checkpoint(tmp_path, 2)
    with pytest.raises(InputError, match=rf"{FILE} is not there") as caught:
        publish_checkpoint(tmp_path, about(2), 2)
    assert "same run folder" in caught.value.hint
    assert newest_checkpoint(tmp_path) is None


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: (path / FILE).unlink(), f"{FILE} is not there"),
        (lambda path: (path / FILE).write_bytes(b"ab"), f"{FILE} has 2 bytes, 3 were written"),
        (lambda path: (path / MANIFEST).unlink(), "cannot be read: No such file"),
        (lambda path: (path / MANIFEST).write_bytes(b"{"), "is no JSON"),
        (lambda path: path.rename(path.with_name("step-00000003")), "says that 2 steps are done"),
        (
            lambda path: (path / MANIFEST).write_text(
                about(2, files={"../x": SavedFile(size_bytes=3, sha256="c" * 64)}).model_dump_json()
            ),
            "names '../x', which no worker writes",
        ),
    ],
)
def test_a_torn_checkpoint_is_refused_with_what_is_wrong_and_what_to_do(tmp_path, damage, said):
    damage(save(tmp_path, 2))
    with pytest.raises(InputError, match=said) as caught:
        newest_checkpoint(tmp_path)
    assert "remove that folder" in caught.value.hint
