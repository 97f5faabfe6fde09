"""Writes the simulator's table of standard nodes from a server, or compares a server with it.

usage: standard_nodes.py dump ENDPOINT     writes crates/simulator/src/standard/nodes.jsonl
       standard_nodes.py check ENDPOINT    prints what differs, and fails if anything does
       standard_nodes.py                   reads a JSON list of endpoints; prints a list with the differences of each

The server must offer an endpoint without security. Namespace 0 is browsed from the Root folder along all references,
and all attributes are read. A line of the table is a node, {"id", "class", "name", "refs", ...}, in the order of the
ids; what has its usual value is not written. References are separated by spaces: a letter for the type
(REFERENCE_LETTERS) and the other node, or a sign, the type, a colon and the other node. A hierarchical reference and an
encoding stand at the node that they lead to ("-"), all others at the node that they start from ("+"). The value of a
node in LIVE is not written, because the simulator computes it.

What LEFT_OUT names is not in the table, nor what is only reached through it, nor an instance whose type is missing: the
simulator has no such function. docs/decisions/146-standard-nodes.md gives the reasons. A server may have more nodes
than the table without being different.
"""

import asyncio
import json
import sys
from pathlib import Path

from asyncua import Client, ua

TABLE = Path(__file__).parents[2] / "crates/simulator/src/standard/nodes.jsonl"

ROOT_FOLDER = 84
NODES_PER_CALL = 200

# Type definitions and modelling rules stand at the instance, all others at the target.
REFERENCE_LETTERS = {40: "t", 37: "r", 45: "s", 46: "p", 47: "c", 35: "o", 38: "e"}
HIERARCHICAL, HAS_MODELLING_RULE, HAS_ENCODING, HAS_TYPE_DEFINITION, HAS_SUBTYPE = 33, 37, 38, 40, 45

LEFT_OUT = {
    "PubSub": [
        14209, 14232, 14443, 14477, 14509, 14643, 15108, 15298, 15305, 15306, 15319, 15452, 15471, 15489, 15906, 17721,
        17997, 17998, 19677, 19725, 21090, 21091, 21096, 21104, 21145, 23795, 23828, 23832, 25337, 25346,
    ],
    "files": [11575, 13353, 15744, 15803],
    "roles and users": [15606, 15607, 15620, 24264, 24290],
    "certificates, keys and configuration of servers": [
        12555, 12556, 12581, 12637, 13813, 16662, 17496, 17852, 18001, 23556, 26871, 32286,
    ],
    "network interfaces": [
        18973, 18996, 19002, 19009, 19033, 24148, 24158, 24167, 24169, 24173, 24179, 24183, 24188, 24199, 24202, 24205,
        24226, 24233, 25218, 25221, 25227,
    ],
    "type dictionaries, which DataTypeDefinition replaced": [7617, 8252],
}

# Variables whose value depends on the options of a simulator, its state or the time.
LIVE = {
    2254: "ServerArray", 2255: "NamespaceArray", 2256: "ServerStatus", 2257: "StartTime", 2258: "CurrentTime",
    2259: "State", 2260: "BuildInfo", 2261: "ProductName", 2262: "ProductUri", 2263: "ManufacturerName",
    2264: "SoftwareVersion", 2265: "BuildNumber", 2266: "BuildDate", 2267: "ServiceLevel",
    2272: "MinSupportedSampleRate", 2735: "MaxBrowseContinuationPoints", 2736: "MaxQueryContinuationPoints",
    2737: "MaxHistoryContinuationPoints", 11702: "MaxArrayLength", 11703: "MaxStringLength",
    12911: "MaxByteStringLength", 11705: "MaxNodesPerRead", 11707: "MaxNodesPerWrite", 11709: "MaxNodesPerMethodCall",
    11710: "MaxNodesPerBrowse", 11711: "MaxNodesPerRegisterNodes", 11712: "MaxNodesPerTranslateBrowsePathsToNodeIds",
    11713: "MaxNodesPerNodeManagement", 11714: "MaxMonitoredItemsPerCall", 12165: "MaxNodesPerHistoryReadData",
    12166: "MaxNodesPerHistoryReadEvents", 12167: "MaxNodesPerHistoryUpdateData",
    12168: "MaxNodesPerHistoryUpdateEvents", 17634: "LocalTime",
}

# What the table has whatever the server has that it is written from: IsNamespaceSubset of namespace 0, of which much is
# left out.
OWN_VALUES = {15961: {"Boolean": True}}

# Attributes that every node may have, and those of a class.
A = ua.AttributeIds
OF_ALL = [A.NodeClass, A.BrowseName, A.DisplayName, A.Description, A.WriteMask, A.UserWriteMask]
OF_CLASS = {
    ua.NodeClass.Object: [A.EventNotifier],
    ua.NodeClass.Variable: [
        A.Value, A.DataType, A.ValueRank, A.ArrayDimensions, A.AccessLevel, A.UserAccessLevel,
        A.MinimumSamplingInterval, A.Historizing,
    ],
    ua.NodeClass.Method: [A.Executable, A.UserExecutable],
    ua.NodeClass.ObjectType: [A.IsAbstract],
    ua.NodeClass.VariableType: [A.Value, A.DataType, A.ValueRank, A.ArrayDimensions, A.IsAbstract],
    ua.NodeClass.ReferenceType: [A.IsAbstract, A.Symmetric, A.InverseName],
    ua.NodeClass.DataType: [A.IsAbstract, A.DataTypeDefinition],
}


def expect(node, what, value, *usual):
    """The table has no field for a value that is the same for every node."""
    if value not in usual:
        raise ValueError(f"i={node}: {what} is {value!r}, which the table cannot express")


def number(node_id):
    expect(node_id, "the namespace", node_id.NamespaceIndex, 0)
    return node_id.Identifier


def text(node, what, value):
    expect(node, f"the locale of {what}", value.Locale, None, "")
    return value.Text or ""


async def browse(client, ids):
    """The references of nodes: (type, is_forward, target), within namespace 0."""
    parameters = ua.BrowseParameters()
    parameters.View.Timestamp = ua.get_win_epoch()
    for node in ids:
        wanted = ua.BrowseDescription()
        wanted.NodeId = ua.NodeId(node)
        wanted.BrowseDirection = ua.BrowseDirection.Both
        wanted.ReferenceTypeId = ua.NodeId()
        wanted.IncludeSubtypes = True
        wanted.ResultMask = ua.BrowseResultMask.ReferenceTypeId | ua.BrowseResultMask.IsForward
        parameters.NodesToBrowse.append(wanted)
    found = {}
    for node, result in zip(ids, await client.uaclient.browse(parameters)):
        result.StatusCode.check()
        references = list(result.References)
        point = result.ContinuationPoint
        while point:
            more = ua.BrowseNextParameters()
            more.ReleaseContinuationPoints = False
            more.ContinuationPoints = [point]
            result = (await client.uaclient.browse_next(more))[0]
            references += result.References
            point = result.ContinuationPoint
        found[node] = [
            (number(one.ReferenceTypeId), one.IsForward, one.NodeId.Identifier)
            for one in references
            if one.NodeId.NamespaceIndex == 0
        ]
    return found


async def browse_all(client):
    found, frontier, seen = {}, [ROOT_FOLDER], {ROOT_FOLDER}
    while frontier:
        some, frontier = frontier[:NODES_PER_CALL], frontier[NODES_PER_CALL:]
        found.update(await browse(client, some))
        new = {target for node in some for _, _, target in found[node]} - seen
        seen |= new
        frontier += sorted(new)
    return found


async def read(client, wanted):
    """The data values of pairs of a node and an attribute."""
    values = {}
    for at in range(0, len(wanted), NODES_PER_CALL * 10):
        some = wanted[at : at + NODES_PER_CALL * 10]
        parameters = ua.ReadParameters()
        parameters.TimestampsToReturn = ua.TimestampsToReturn.Both
        parameters.NodesToRead = [
            ua.ReadValueId(NodeId=ua.NodeId(node), AttributeId=attribute) for node, attribute in some
        ]
        values.update(zip(some, await client.uaclient.read(parameters)))
    return values


def in_the_table(references, downwards):
    """What can be reached from the root downwards, and modelling rules, without what is left out."""
    left_out = {node for nodes in LEFT_OUT.values() for node in nodes}
    while True:
        kept, frontier = set(), [ROOT_FOLDER]
        while frontier:
            node = frontier.pop()
            if node in kept or node in left_out:
                continue
            kept.add(node)
            followed = downwards | {HAS_MODELLING_RULE}
            frontier += [target for kind, is_forward, target in references[node] if is_forward and kind in followed]
        untyped = {
            node
            for node in kept
            for kind, is_forward, target in references[node]
            if kind == HAS_TYPE_DEFINITION and is_forward and target not in kept
        }
        if not untyped:
            return kept
        left_out |= untyped


def subtypes(references, of):
    below = {of}
    frontier = [of]
    while frontier:
        node = frontier.pop()
        new = [target for kind, is_forward, target in references[node] if kind == HAS_SUBTYPE and is_forward]
        below.update(new)
        frontier += new
    return below


def reference_texts(references, kept, downwards):
    """The field "refs" of each node."""
    texts = {node: [] for node in kept}
    for node in kept:
        for kind, is_forward, target in references[node]:
            if target not in kept or is_forward == (kind in downwards):
                continue
            sign = REFERENCE_LETTERS.get(kind) or f"{'+' if is_forward else '-'}{kind}:"
            texts[node].append((kind != HAS_TYPE_DEFINITION, kind, target, f"{sign}{target}"))
    return {node: " ".join(text for *_, text in sorted(found)) for node, found in texts.items()}


def field(node, one):
    """A field of a structure or an argument of a method."""
    row = {"name": one.Name, "data": number(one.DataType)}
    if one.ValueRank != -1:
        row["rank"] = one.ValueRank
    if text(node, "a description", one.Description):
        row["about"] = one.Description.Text
    return row


def member(node, value, name, description):
    row = {"value": value, "name": name}
    if text(node, "a description", description):
        row["about"] = description.Text
    return row


def definition(node, value, row):
    if isinstance(value, ua.EnumDefinition):
        for one in value.Fields:
            expect(node, "the display name of a member", text(node, "a member", one.DisplayName), "")
        row["enumeration"] = [member(node, one.Value, one.Name, one.Description) for one in value.Fields]
        return
    expect(node, "the kind of structure", value.StructureType, ua.StructureType.Structure)
    expect(node, "the base type", value.BaseDataType, ua.NodeId())
    fields = value.Fields or []
    for one in fields:
        expect(node, "the dimensions of a field", one.ArrayDimensions, None, [])
        expect(node, "the longest text of a field", one.MaxStringLength, 0)
        expect(node, "a field being optional", one.IsOptional, False)
    row["structure"] = {"encoding": number(value.DefaultEncodingId), "fields": [field(node, one) for one in fields]}


def argument(node, one):
    expect(node, "the dimensions of an argument", one.ArrayDimensions or [], [0] * max(one.ValueRank, 0))
    return field(node, one)


def enum_value(node, one):
    return member(node, one.Value, text(node, "a member", one.DisplayName), one.Description)


def value_of(node, variant):
    """{type: value}, or None for an empty value."""
    kind, value = variant.VariantType, variant.Value
    if value is None and not variant.is_array:
        return None
    plain = {ua.VariantType.Int32, ua.VariantType.UInt32, ua.VariantType.Boolean, ua.VariantType.String}
    if variant.is_array:
        if kind is ua.VariantType.ExtensionObject:
            name = {"Argument": ("Arguments", argument), "EnumValueType": ("EnumValues", enum_value)}
            key, convert = name[type(value[0]).__name__]
            return {key: [convert(node, one) for one in value]}
        if kind is ua.VariantType.LocalizedText:
            return {"LocalizedTexts": [text(node, "an element", one) for one in value]}
        expect(node, "the type of the elements", kind, ua.VariantType.Int32, ua.VariantType.String)
        return {f"{kind.name}s": value}
    if kind is ua.VariantType.LocalizedText:
        return {"LocalizedText": [value.Locale or "", value.Text or ""]}
    if kind is ua.VariantType.DateTime:
        return {"DateTime": value.strftime("%Y-%m-%dT%H:%M:%SZ")}
    expect(node, "the type of the value", kind, *plain)
    return {kind.name: value}


def attribute_rows(node, row, get):
    """Writes what is unusual into the row; `get` returns the value of an attribute, or None if the node has none."""
    expect(node, "the write mask", get(A.WriteMask), 0)
    expect(node, "the write mask of the user", get(A.UserWriteMask), 0)
    if get(A.Description) is not None:
        row["about"] = text(node, "the description", get(A.Description))
    for attribute, key, usual in [
        (A.DataType, "data", None),
        (A.ValueRank, "rank", -1),
        (A.ArrayDimensions, "dims", None),
        (A.AccessLevel, "access", 1),
        (A.EventNotifier, "events", 0),
        (A.IsAbstract, "abstract", False),
        (A.Symmetric, "symmetric", False),
    ]:
        value = get(attribute)
        if value is not None and value != usual:
            row[key] = number(value) if attribute is A.DataType else value
    if get(A.InverseName) is not None:
        row["inverse"] = text(node, "the inverse name", get(A.InverseName))
    expect(node, "the access level of the user", get(A.UserAccessLevel), None, 1)
    expect(node, "the sampling interval", get(A.MinimumSamplingInterval), None, 0.0)
    expect(node, "a history", get(A.Historizing), None, False)
    expect(node, "being executable", get(A.Executable), None, True)
    expect(node, "being executable for the user", get(A.UserExecutable), None, True)
    if get(A.DataTypeDefinition) is not None:
        definition(node, get(A.DataTypeDefinition), row)


def check_live_value(node, data):
    """The table says nothing about it, but there must be one."""
    if not data.StatusCode.is_good() or data.Value is None or data.Value.Value is None:
        raise ValueError(f"i={node}: {LIVE[node]} has no value: {data}")


async def rows_of(client):
    """The rows of the table as the server has them, by id."""
    references = await browse_all(client)
    downwards = subtypes(references, HIERARCHICAL) | {HAS_ENCODING}
    kept = in_the_table(references, downwards)
    texts = reference_texts(references, kept, downwards)
    ids = sorted(kept)
    values = await read(client, [(node, attribute) for node in ids for attribute in OF_ALL])
    classes = {node: ua.NodeClass(values[node, A.NodeClass].Value.Value) for node in ids}
    values.update(await read(client, [(node, attribute) for node in ids for attribute in OF_CLASS[classes[node]]]))
    rows = {}
    for node in ids:

        def get(attribute, node=node):
            data = values.get((node, attribute))
            exists = data is not None and data.StatusCode.is_good() and data.Value is not None
            return data.Value.Value if exists else None

        name = get(A.BrowseName)
        expect(node, "the namespace of the browse name", name.NamespaceIndex, 0)
        expect(node, "the display name", text(node, "the display name", get(A.DisplayName)), name.Name)
        row = {"id": node, "class": classes[node].name, "name": name.Name, "refs": texts[node]}
        attribute_rows(node, row, get)
        data = values.get((node, A.Value))
        if node in LIVE:
            check_live_value(node, data)
        elif data is not None and data.Value is not None:
            value = value_of(node, data.Value)
            if value is not None:
                row["value"] = value
        rows[node] = row
    return rows


async def connected_rows(endpoint):
    async with Client(endpoint, timeout=60) as client:
        return await rows_of(client)


def lines_of(rows):
    return [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows.values()]


def differences(endpoint):
    """What differs between the table and a server, one text per node."""
    table = {json.loads(line)["id"]: line for line in TABLE.read_text().splitlines()}
    server = dict(zip(rows := asyncio.run(connected_rows(endpoint)), lines_of(rows)))
    absent = [f"the server lacks {table[node]}" for node in table if node not in server]
    more = [f"the table lacks {server[node]}" for node in server if node not in table]
    others = [
        f"the table has {table[node]}, the server {server[node]}"
        for node in table
        if node in server and table[node] != server[node]
    ]
    return absent + more + others


def main(arguments):
    match arguments:
        case ["dump", endpoint]:
            rows = asyncio.run(connected_rows(endpoint))
            for node, value in OWN_VALUES.items():
                rows[node]["value"] = value
            TABLE.write_text("".join(f"{line}\n" for line in lines_of(rows)))
        case ["check", endpoint]:
            found = differences(endpoint)
            print("\n".join(found) or "no difference")
            return 1 if found else 0
        case []:
            print(json.dumps([differences(endpoint) for endpoint in json.load(sys.stdin)]))
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
