"""Sizes, settings and ranks: what is accepted, and what the errors say."""

import pytest
import torch
from smartswap.devices import choose_device, total_bytes
from smartswap.errors import SettingsError, nearest
from smartswap.ranks import Ranks, free_host_bytes
from smartswap.settings import Settings
from smartswap.sizes import format_size, parse_percent, parse_size


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("24GiB", 24 << 30),
        ("24G", 24 << 30),
        ("1.5 gib", 3 << 29),
        ("24GB", 24 * 10**9),
        ("512MiB", 512 << 20),
        ("8k", 8192),
        ("123", 123),
        (123, 123),
        (0.5e9, 500_000_000),
        (".5MiB", 1 << 19),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_sizes(text, n_bytes):
    assert parse_size(text) == n_bytes


@pytest.mark.parametrize(
    "text", ["", "lots", "24 GiBB", "-1GiB", "0", 0, -5, True, None, [1], "1e3", "9999999999TiB"]
)
def test_bad_sizes_say_how_to_write_one(text):
    with pytest.raises(SettingsError, match=r"24GiB|all that is free"):
        parse_size(text, "memory")


def test_a_cap_may_be_a_share_of_the_device():
    settings = Settings.parse(memory="12.5%")
    assert settings.has_cap
    assert not Settings.parse().has_cap
    wishes = settings.for_adapter("host", Ranks(), total_bytes=lambda: 80 << 30)
    assert wishes["memory_bytes"] == 10 << 30
    assert total_bytes("host") > 1 << 30
    assert parse_percent(" 60 % ") == 60
    assert parse_percent("60") is None
    for text in ("0%", "-1%", "101%", "half%", "%", "nan%"):
        with pytest.raises(SettingsError, match=f"memory: '{text}' is not a percentage"):
            Settings.parse(memory=text)
    with pytest.raises(SettingsError, match="write 24GiB"):
        Settings.parse(host_memory="60%")


def test_sizes_for_people():
    assert format_size(512) == "512 B"
    assert format_size(3 << 29) == "1.50 GiB"
    assert format_size(64 << 20) == "64.00 MiB"


def test_settings_are_checked_and_filled_in():
    settings = Settings.parse(memory="1GiB", prefer="memory", host_memory=None)
    assert (settings.memory_bytes, settings.prefer, settings.strategy) == (1 << 30, "memory", None)
    wishes = settings.for_adapter("host", Ranks(), total_bytes=pytest.fail)
    assert wishes["memory_bytes"] == 1 << 30
    assert wishes["device"] == "host"
    assert wishes["prefer"] == "memory"
    assert settings.rank_wait_s == 30.0
    assert Settings.parse(rank_wait="2.5").rank_wait_s == 2.5
    assert Settings.parse(rank_wait=0).rank_wait_s == 0.0
    # What nobody asked for would win over the file.
    assert not {"config_file", "strategy"} & wishes.keys()


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        ({"memmory": "1GiB"}, "did you mean memory"),
        ({"prefer": "speed"}, "performance, memory"),
        ({"strategy": "swp"}, "did you mean swap"),
        ({"config": "/no/such.toml"}, "no file"),
        ({"record": "/no/such/folder/a.json"}, "make it first"),
        ({"memory": "much"}, "memory: 'much' is not a size"),
        ({"rank_wait": "long"}, "rank_wait is a number of seconds such as 30, not 'long'"),
        ({"rank_wait": -1}, "rank_wait is a number of seconds"),
        ({"rank_wait": float("nan")}, "rank_wait is a number of seconds"),
        ({"rank_wiat": 1}, "did you mean rank_wait"),
        ({"device": 3}, "device is a text, not 3"),
        ({"strategy": ["swap"]}, "strategy is a text"),
        ({"config": object()}, "config is a path such as 'run/config', not <object"),
        ({"report": ""}, "report is a path"),
        ({"record": 3}, "record is a path such as 'run/record', not 3"),
        ({"record": b"a.json"}, "record is a path"),
        ({"manual_steps": "maybe"}, "manual_steps is True or False, not 'maybe'"),
        ({"manual_steps": 1}, "manual_steps is True or False"),
        ({"verify": "yes"}, "verify is True or False, not 'yes'"),
    ],
)
def test_bad_settings_say_how_to_mend_them(wishes, says):
    with pytest.raises(SettingsError, match=says):
        Settings.parse(**wishes)


def test_a_device_may_be_one_of_pytorch():
    assert Settings.parse(device=torch.device("cuda", 1)).device == "cuda:1"
    assert Settings.parse(device=torch.device("cpu")).device == "cpu"


def test_paths_may_be_paths(tmp_path):
    assert Settings.parse(record=tmp_path / "a.json").record == str(tmp_path / "a.json")


def test_record_may_not_be_a_folder(tmp_path):
    with pytest.raises(SettingsError, match="is a folder; name a file in it"):
        Settings.parse(record=tmp_path)


def test_report_may_not_be_a_file(tmp_path):
    file = tmp_path / "report"
    file.write_text("")
    with pytest.raises(SettingsError, match="name a folder"):
        Settings.parse(report=str(file))


def test_nearest_knows_when_nothing_is_near():
    assert nearest("--memroy", ["--memory", "--prefer"]) == "; did you mean --memory?"
    assert nearest("zzzz", ["--memory", "--prefer"]) == ""


def test_ranks_share_the_host_memory_of_a_node():
    names = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}
    ranks = Ranks.read(names)
    assert ranks == Ranks(9, 16, 1, 8)
    assert ranks.host_bytes(800, None) == 100
    assert ranks.host_bytes(0, 1000) == 100
    assert ranks.host_bytes(0, None) == 0
    assert Ranks.read({}).host_bytes(0, 1000) == 0
    assert Ranks.read({}).host_bytes(800, 1000) == 800
    with pytest.raises(SettingsError, match="LOCAL_RANK is 'x'"):
        Ranks.read({"LOCAL_RANK": "x"})


def test_files_of_ranks_differ():
    assert Settings.file_of_rank("a/b.json", Ranks(1, 2, 1, 2)) == "a/b.rank1.json"
    assert Settings.file_of_rank("a/b.json", Ranks()) == "a/b.json"


def test_free_host_memory_is_the_smaller_of_system_and_group(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 900 kB\nMemAvailable: 700 kB\n")
    assert free_host_bytes(tmp_path) == 700 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("512000\n")
    (group / "memory.current").write_text("12000\n")
    assert free_host_bytes(tmp_path) == 500_000
    (group / "memory.max").write_text("max\n")
    assert free_host_bytes(tmp_path) == 700 * 1024
    assert free_host_bytes(tmp_path / "nowhere") is None


def test_devices():
    assert choose_device("cpu", Ranks()) == "host"
    assert choose_device("cuda", Ranks(local_rank=3)) == "cuda:3"
    assert choose_device("npu:1", Ranks(local_rank=3)) == "npu:1"
    for wish in ("tpu", "cuda:x", ""):
        with pytest.raises(SettingsError, match="device is host"):
            choose_device(wish, Ranks())
