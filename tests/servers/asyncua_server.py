#!/usr/bin/env python3
"""An asyncua server to collect from: every scalar type, arrays, a matrix, a structure, and counters that change.

Root `ns=2;s=Plant` with the folders `Types` (constant values, one node per type) and `Counters` (`ns=2;s=Counter1`...,
UInt32, all add 1 at each period); with `--writable` also `Setpoints`, one node per type that clients may write. With
`--namespaces-before N` the index is 2 + N, and the old index has a node of the same name that does not count. Offers None,
and Basic256Sha256 with Sign and SignAndEncrypt; accepts anonymous clients and the user `operator` with password `secret`.
Prints `listening opc.tcp://...` when it is ready.
"""

import gc

# The standard's thousands of nodes stay. Looking at them again and again would take longer than making them.
gc.disable()

import argparse
import asyncio
import logging
import socket
import sys
import uuid
from datetime import datetime, timezone
from pathlib import Path

from asyncua import Server, ua
from asyncua.crypto.cert_gen import setup_self_signed_certificate
from asyncua.crypto.permission_rules import User, UserRole
from asyncua.server.user_managers import UserManager
from cryptography.x509.oid import ExtendedKeyUsageOID

APPLICATION_URI = "urn:thalweg:test:asyncua"
NAMESPACE = "urn:thalweg:test:plant"
# Read by a client that uses the old index of a moved namespace.
DECOY = 4_000_000_000
# Counters beyond these are in further folders.
PER_FOLDER = 200


class Users(UserManager):
    """Accepts anonymous clients and one user; `--users-only` refuses the anonymous ones."""

    def __init__(self, name, password, users_only):
        self.name, self.password, self.users_only = name, password, users_only

    def get_user(self, iserver, username=None, password=None, certificate=None):
        if username is None:
            return None if self.users_only else User(role=UserRole.User)
        if isinstance(password, bytes):
            password = password.decode()
        if (username, password) == (self.name, self.password):
            return User(role=UserRole.User, name=username)
        return None


def scalars():
    """Name, value and type of each constant node."""
    T = ua.VariantType
    date = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=timezone.utc)
    guid = uuid.UUID("72962B91-FA75-4AE6-8D28-B404DC7DAF63")
    return [
        ("Boolean", True, T.Boolean),
        ("SByte", -128, T.SByte),
        ("Byte", 255, T.Byte),
        ("Int16", -32768, T.Int16),
        ("UInt16", 65535, T.UInt16),
        ("Int32", -2147483648, T.Int32),
        ("UInt32", 4294967295, T.UInt32),
        ("Int64", -9223372036854775808, T.Int64),
        ("UInt64", 18446744073709551615, T.UInt64),
        ("Float", 0.5, T.Float),
        ("Double", 0.1, T.Double),
        ("DoubleNaN", float("nan"), T.Double),
        ("DoubleInf", float("inf"), T.Double),
        ("String", "Grüße", T.String),
        ("DateTime", date, T.DateTime),
        ("Guid", guid, T.Guid),
        ("ByteString", b"\x01\x02\x03", T.ByteString),
        ("XmlElement", ua.XmlElement("<a/>"), T.XmlElement),
        ("NodeId", ua.NodeId("Target", 2), T.NodeId),
        ("ExpandedNodeId", ua.ExpandedNodeId(7, 2), T.ExpandedNodeId),
        ("StatusCode", ua.StatusCode(ua.StatusCodes.BadUnexpectedError), T.StatusCode),
        ("QualifiedName", ua.QualifiedName("name", 2), T.QualifiedName),
        ("LocalizedText", ua.LocalizedText("text", "en"), T.LocalizedText),
        ("Range", ua.Range(Low=0.0, High=100.0), T.ExtensionObject),
        ("Int32Array", [1, 2, 3], T.Int32),
        ("StringArray", ["a", "b"], T.String),
        ("ByteArray", [0, 127, 255], T.Byte),
        ("DoubleArray", [0.5, 1.5], T.Double),
        ("EmptyArray", [], T.Double),
        ("Matrix", [[1, 2, 3], [4, 5, 6]], T.Int32),
    ]


def setpoints():
    """Name, first value and type of each writable node."""
    T = ua.VariantType
    integers = [T.SByte, T.Byte, T.Int16, T.UInt16, T.Int32, T.UInt32, T.Int64, T.UInt64]
    others = [
        ("Boolean", False, T.Boolean),
        ("Float", 0.0, T.Float),
        ("Double", 0.0, T.Double),
        ("String", "", T.String),
        ("DateTime", datetime(2031, 1, 1, tzinfo=timezone.utc), T.DateTime),
    ]
    return [(kind.name, 0, kind) for kind in integers] + others


async def build(server, nodes, big, namespaces_before, writable):
    objects = server.nodes.objects
    for number in range(namespaces_before):
        other = await server.register_namespace(f"urn:thalweg:test:other:{number}")
        await objects.add_variable(
            ua.NodeId("Counter1", other), ua.QualifiedName("Counter1", other), DECOY, ua.VariantType.UInt32
        )
    index = await server.register_namespace(NAMESPACE)
    assert index == 2 + namespaces_before, f"namespace index {index}"

    def node_id(name):
        return ua.NodeId(name, index)

    def browse_name(name):
        return ua.QualifiedName(name, index)

    plant = await objects.add_object(node_id("Plant"), browse_name("Plant"))
    types = await plant.add_folder(node_id("Types"), browse_name("Types"))
    for name, value, kind in scalars():
        node = await types.add_variable(node_id(f"Types.{name}"), browse_name(name), value, kind)
        if name == "Double":
            await node.write_attribute(
                ua.AttributeIds.Description,
                ua.DataValue(ua.Variant(ua.LocalizedText("A tenth", "en"), ua.VariantType.LocalizedText)),
            )
    if big:
        await types.add_variable(node_id("Types.Big"), browse_name("Big"), "x" * big, ua.VariantType.String)
    if writable:
        folder = await plant.add_folder(node_id("Setpoints"), browse_name("Setpoints"))
        for name, value, kind in setpoints():
            node = await folder.add_variable(node_id(f"Setpoint.{name}"), browse_name(f"Setpoint{name}"), value, kind)
            await node.set_writable()
    folder = await plant.add_folder(node_id("Counters"), browse_name("Counters"))
    counters = []
    for i in range(1, nodes + 1):
        name = f"Counter{i}"
        # Adding to a folder takes longer the more entries it has.
        if i > 1 and i % PER_FOLDER == 1:
            block = f"Block{i // PER_FOLDER}"
            folder = await plant.add_folder(node_id(block), browse_name(block))
        node = await folder.add_variable(node_id(name), browse_name(name), 0, ua.VariantType.UInt32)
        counters.append(node)
    return counters


async def count(server, counters, period):
    number = 0
    while True:
        await asyncio.sleep(period)
        number += 1
        now = datetime.now(timezone.utc)
        value = ua.DataValue(ua.Variant(number, ua.VariantType.UInt32), SourceTimestamp=now, ServerTimestamp=now)
        for done, node in enumerate(counters):
            await server.write_attribute_value(node.nodeid, value)
            # A write never waits. Without a pause, sessions would get no keep-alives while many counters change.
            if done % 100 == 99:
                await asyncio.sleep(0)


async def main(options):
    folder = Path(options.pki)
    folder.mkdir(parents=True, exist_ok=True)
    certificate, key = folder / "server.der", folder / "server.pem"
    names = {"countryName": "DE", "stateOrProvinceName": "-", "localityName": "-", "organizationName": "Thalweg"}
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    await setup_self_signed_certificate(key, certificate, APPLICATION_URI, socket.gethostname(), usages, names)
    server = Server(user_manager=Users(options.user, options.password, options.users_only))
    await server.init()
    await server.set_application_uri(APPLICATION_URI)
    server.set_endpoint(f"opc.tcp://127.0.0.1:{options.port}/thalweg/")
    server.set_server_name("Thalweg test server (asyncua)")
    policies = [
        ua.SecurityPolicyType.Basic256Sha256_SignAndEncrypt,
        ua.SecurityPolicyType.Basic256Sha256_Sign,
    ]
    if not options.secure_only:
        policies.insert(0, ua.SecurityPolicyType.NoSecurity)
    server.set_security_policy(policies)
    tokens = [ua.UserNameIdentityToken] if options.users_only else [ua.AnonymousIdentityToken, ua.UserNameIdentityToken]
    server.set_identity_tokens(tokens)
    await server.load_certificate(str(certificate))
    await server.load_private_key(str(key))
    counters = await build(server, options.nodes, options.big, options.namespaces_before, options.writable)
    gc.freeze()
    gc.enable()
    async with server:
        if options.frozen_clock:
            server.iserver.time_task.cancel()
        print(f"listening opc.tcp://127.0.0.1:{options.port}/thalweg/", flush=True)
        await count(server, counters, options.period)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=48010)
    parser.add_argument("--nodes", type=int, default=10, help="counters")
    parser.add_argument("--period", type=float, default=1.0, help="seconds between two changes of the counters")
    parser.add_argument("--big", type=int, default=0, help="also a string of so many characters")
    parser.add_argument("--namespaces-before", type=int, default=0, help="namespaces of others before the plant's own")
    parser.add_argument("--writable", action="store_true", help="also a folder `Setpoints` of nodes to write to")
    parser.add_argument("--frozen-clock", action="store_true", help="never update the server's CurrentTime")
    parser.add_argument("--user", default="operator")
    parser.add_argument("--password", default="secret")
    parser.add_argument("--users-only", action="store_true", help="take no anonymous clients")
    parser.add_argument("--secure-only", action="store_true", help="offer no endpoint without security")
    parser.add_argument("--pki", default="pki", help="folder of certificate and key")
    return parser.parse_args()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    try:
        asyncio.run(main(arguments()))
    except KeyboardInterrupt:
        pass
