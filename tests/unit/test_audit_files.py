"""Exported logs: what is written is read again, whole or not at all."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from runfold.audit import verify
from runfold.audit.files import MANIFEST, Export, ExportedLog, ExportError
from runfold.cli.app import app
from runfold.core.events import Delivery, Problem, Record, RunFinished, Unreadable
from tests.replay.golden_log import LOGS, read_log

GOLDEN = LOGS / "0.1.0.jsonl"
BAD = [
    Unreadable(0, 900, 5, None, b"\x00\x01", Problem.NO_KEY, "no key"),
    Unreadable(1, 901, 5, b"\xff\xfe", None, Problem.NULL_VALUE, "no value"),
    Unreadable(1, 902, 5, b"key", b"\xc3\x01\x00", Problem.UNKNOWN_SCHEMA, "from the future"),
]


def golden() -> list[Record]:
    return read_log(GOLDEN.read_text())


def exported(to: Path, deliveries: Sequence[Delivery]) -> Path:
    with Export(to, "runs", {0: 0, 1: 0}) as out:
        for delivery in deliveries:
            out.write(delivery)
        out.finish()
    return to


def test_what_was_exported_is_what_is_read(tmp_path: Path) -> None:
    deliveries: list[Delivery] = [*golden(), *BAD]
    read = list(ExportedLog(exported(tmp_path, deliveries)).deliveries())
    assert read == sorted(deliveries, key=lambda delivery: delivery.partition)
    assert [violation.invariant for violation in verify(read)] == ["readable"] * len(BAD)


def test_the_manifest_says_what_there_is(tmp_path: Path) -> None:
    manifest = json.loads((exported(tmp_path, golden()) / MANIFEST).read_text())
    assert (manifest["topic"], manifest["partitions"]) == ("runs", 2)
    assert sum(part["records"] for part in manifest["files"]) == len(golden())
    assert {tmp_path / part["file"] for part in manifest["files"]} | {tmp_path / MANIFEST} == set(tmp_path.iterdir())


def test_a_file_of_an_export_is_read_alone(tmp_path: Path) -> None:
    file = exported(tmp_path, golden()) / "partition-0001.jsonl"
    assert {delivery.partition for delivery in ExportedLog(file).deliveries()} == {1}


def test_an_export_that_breaks_off_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        exported(tmp_path, [golden()[0], Unreadable(7, 0, 0, None, None, Problem.NO_KEY, "of a partition that is not there")])
    assert list(tmp_path.iterdir()) == []


def test_no_file_has_its_name_before_the_end(tmp_path: Path) -> None:
    with Export(tmp_path, "runs", {0: 0, 1: 0}) as out:
        out.write(golden()[0])
        assert [file.suffix for file in tmp_path.iterdir()] == [".part"]


def test_an_export_is_not_written_over(tmp_path: Path) -> None:
    exported(tmp_path, golden())
    with pytest.raises(ExportError, match="holds an export already"):
        exported(tmp_path, golden())


def test_a_changed_file_is_refused_at_its_end(tmp_path: Path) -> None:
    file = exported(tmp_path, golden()) / "partition-0000.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(ExportError, match="is not what its manifest says"):
        list(ExportedLog(tmp_path).deliveries())


@pytest.mark.parametrize("line", ["", "{}", "[]", "null", '{"partition":0,"offset":0,"timestamp":0,"key":1,"type":2,"value":3}'])
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text(f"{GOLDEN.read_text().splitlines()[0]}\n{line}\n")
    with pytest.raises(ExportError, match="line 2: expected a record of an exported log"):
        list(ExportedLog(file, 2).deliveries())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"format":9}',
        '{"format":1,"topic":"t","partitions":0,"files":[]}',
        '{"format":1,"topic":"t","partitions":1,"files":[{"x":1}]}',
    ],
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(ExportError, match=r"manifest|format"):
        ExportedLog(tmp_path)


def test_a_directory_without_a_manifest_is_no_export(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"expected a manifest\.json"):
        ExportedLog(tmp_path)


@pytest.mark.parametrize("place", ["a file", "below/a file/x", "n" * 300, "/proc/foo"])
def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "a file").touch()
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a file").touch()
    with pytest.raises(ExportError, match=r"cannot be written to: .*; choose another directory$") as told:
        exported(tmp_path / place, golden())
    assert str(tmp_path / place) in str(told.value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is full, on Linux")
def test_a_disk_that_is_full_is_named_and_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "partition-0000.jsonl.part").symlink_to("/dev/full")
    with pytest.raises(ExportError, match="cannot be written to: No space left"):
        exported(tmp_path, golden())
    assert list(tmp_path.iterdir()) == []


# ---- the command, on files


def test_the_log_of_a_release_is_a_file_to_check() -> None:
    result = CliRunner().invoke(app, ["verify-log", str(GOLDEN), "--partitions", "2", "--json"])
    said = json.loads(result.stdout)
    assert (result.exit_code, said["records"], said["violations"]) == (0, len(golden()), 0)


def test_the_first_violation_is_printed_and_the_exit_code_is_1(tmp_path: Path) -> None:
    end = next(record for record in golden() if isinstance(record.event, RunFinished) and record.partition == 0)
    forged = Record(end.event, 0, 500, end.timestamp)
    result = CliRunner().invoke(app, ["verify-log", str(exported(tmp_path, [*golden(), forged, *BAD]))])
    assert result.exit_code == 1
    assert "VIOLATION no_stale_epoch at 0/500, run " in result.stdout
    assert f"{1 + len(BAD)} violations" in result.stdout


@pytest.mark.parametrize("words", [["no/such.jsonl", "--partitions", "2"], ["no/such.jsonl"], [str(GOLDEN)], [str(LOGS)]])
def test_what_cannot_be_read_gives_no_verdict(words: list[str]) -> None:
    result = CliRunner().invoke(app, ["verify-log", *words])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("runfold: ")


def test_verify_log_says_that_a_file_is_not_there(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["verify-log", str(tmp_path / "none")])
    assert (result.exit_code, result.stderr) == (2, f"runfold: there is no {tmp_path / 'none'}\n")


@pytest.mark.parametrize("command", [["verify-log"], ["replay", "x", "--file"]])
def test_what_the_system_does_not_let_us_read_is_one_line(tmp_path: Path, command: list[str]) -> None:
    exported(tmp_path, golden())
    (tmp_path / MANIFEST).unlink()
    (tmp_path / MANIFEST).mkdir()
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path, tmp_path / "partition-0000.jsonl", tmp_path / "loop", tmp_path / ("n" * 300)):
        result = CliRunner().invoke(app, [*command, str(path)])
        told = result.stderr or str(result.exception)  # which `main` prints
        assert isinstance(result.exception, SystemExit | ExportError)
        assert "cannot be read: " in told


def test_an_excerpt_of_nothing_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "cut.jsonl").touch()
    whole = exported(tmp_path / "whole", golden())
    nothing = exported(tmp_path / "nothing", [])
    for words in ([str(tmp_path / "cut.jsonl"), "--partitions", "2"], [str(whole), str(nothing)]):
        result = CliRunner().invoke(app, ["verify-log", *words])
        assert (result.exit_code, result.stdout) == (2, "")
        assert "holds no record: there is nothing to check" in result.stderr


def test_the_manifest_s_number_of_partitions_is_not_overruled(tmp_path: Path) -> None:
    exported(tmp_path, golden())
    for path in (tmp_path, tmp_path / "partition-0001.jsonl"):
        result = CliRunner().invoke(app, ["verify-log", str(path), "--partitions", "3"])
        assert result.exit_code == 2
        assert "manifest.json says that the topic has 2 partitions, --partitions says 3: leave it out" in result.stderr
        assert CliRunner().invoke(app, ["verify-log", str(path), "--partitions", "2"]).exit_code == 0


def test_a_file_that_only_lies_beside_a_manifest_has_its_own_number(tmp_path: Path) -> None:
    exported(tmp_path, golden()[:1])
    stranger = tmp_path / "stranger.jsonl"
    stranger.write_text(GOLDEN.read_text())
    assert "0 violations" in CliRunner().invoke(app, ["verify-log", str(stranger), "--partitions", "2"]).stdout
    assert ExportedLog(stranger, 3).partitions == 3


def test_a_topic_s_number_of_partitions_is_not_asked_for() -> None:
    result = CliRunner().invoke(app, ["verify-log", "--bootstrap", "localhost:1", "--partitions", "3"])
    assert (result.exit_code, "--partitions goes with a file" in result.stderr) == (2, True)


def test_a_record_that_nobody_can_read_comes_with_what_leaves_it_out(tmp_path: Path) -> None:
    log = str(exported(tmp_path, [*golden(), *BAD]))
    assert "--except readable" in CliRunner().invoke(app, ["verify-log", log]).stdout
    assert CliRunner().invoke(app, ["verify-log", log, "--except", "readable"]).exit_code == 0
