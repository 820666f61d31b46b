"""Ports and addresses, on this machine's real sockets."""

import socket

import pytest

from retool_mcore.cluster import network
from retool_mcore.errors import UserError


@pytest.fixture
def listener():
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_port_that_is_listened_on_is_busy(listener):
    assert network.busy_ports([listener]) == [listener]


def test_ports_are_free_consecutive_and_below_the_ephemeral_range():
    base = network.free_base_port(123, 40)
    assert base >= network.FIRST_PORT and base + 40 <= 32_768
    assert network.busy_ports(range(base, base + 40)) == []


def test_a_job_gets_its_ports_again_and_another_job_others():
    first = network.free_base_port(7, 20)
    assert network.free_base_port(7, 20) == first
    assert abs(network.free_base_port(8, 20) - first) >= 20


def test_a_busy_port_moves_the_job_to_the_next_place():
    base = network.free_base_port(7, 20)
    with socket.socket() as server:
        server.bind(("", base + 19))
        server.listen()
        assert network.free_base_port(7, 20) >= base + 20


def test_no_place_left_is_said():
    with pytest.raises(UserError, match="no 70000 consecutive ports"):
        network.free_base_port(7, 70_000)


def test_nodes_on_this_machine_meet_on_its_main_address():
    assert network.shared_address(["localhost"])[1] == network.main_address()
    assert network.shared_address([])[1] == network.main_address()


def test_the_interface_of_an_address():
    assert network.interface_of("127.0.0.1") == "lo"
    assert network.interface_of("203.0.113.77") is None


def test_a_node_without_an_address_is_named():
    with pytest.raises(UserError, match=r"the node no-such-node\.invalid has no address"):
        network.shared_address(["no-such-node.invalid"])


def adapter(root, name: str, layer: str, state: str) -> None:
    port = root / name / "ports/1"
    port.mkdir(parents=True)
    (port / "link_layer").write_text(layer + "\n")
    (port / "state").write_text(state + "\n")


def test_only_infiniband_adapters_that_are_up_are_named_to_nccl(tmp_path):
    adapter(tmp_path, "mlx5_1", "InfiniBand", "4: ACTIVE")
    adapter(tmp_path, "mlx5_0", "InfiniBand", "4: ACTIVE")
    adapter(tmp_path, "mlx5_2", "InfiniBand", "1: DOWN")
    adapter(tmp_path, "mlx5_3", "Ethernet", "4: ACTIVE")
    env = network.nccl_env("ib0", tmp_path)
    assert env == {"NCCL_SOCKET_IFNAME": "=ib0", "GLOO_SOCKET_IFNAME": "ib0", "NCCL_IB_HCA": "=mlx5_0,mlx5_1"}
    assert network.nccl_env(None, tmp_path / "none") == {}


def test_a_control_interface_can_be_named(monkeypatch):
    """Whatever the nodes' names lead to, and of several names the first that is here."""
    monkeypatch.setenv("RETOOL_INTERFACE", "ib0,lo")
    assert network.shared_address(["no-such-node.invalid"]) == ("lo", "127.0.0.1")
    monkeypatch.setenv("RETOOL_INTERFACE", "ib0, lo")
    assert network.shared_address([]) == ("lo", "127.0.0.1")
    monkeypatch.setenv("RETOOL_INTERFACE", "ib0")
    with pytest.raises(
        UserError, match="RETOOL_INTERFACE=ib0: .* has none with an IPv4 address of that name, but .*lo"
    ):
        network.shared_address([])


def test_names_that_are_in_no_dns_are_machines_of_their_own_where_an_interface_is_named(monkeypatch):
    nodes = ["here", "cloud-1.invalid", "cloud-2.invalid", "127.0.0.1"]
    monkeypatch.delenv("RETOOL_INTERFACE", raising=False)
    with pytest.raises(UserError, match="cloud-1.invalid has no address"):
        network.places(nodes)
    monkeypatch.setenv("RETOOL_INTERFACE", "eth0")
    assert network.places(nodes) == [0, 0, 0, 1]
