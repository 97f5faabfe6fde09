// A node-opcua server to collect from: every scalar type, arrays, a matrix, a structure, and counters that change.
//
// Root `ns=1;s=Plant` with the folders `Types` (constant values, one node per type) and `Counters` (`ns=1;s=Counter1`…,
// UInt32, all add 1 at each period); with `--writable` also `Setpoints`, one node per type that clients may write, and
// `ns=1;s=Dead`, whose device is absent: the server waits for it before it refuses. Offers None, and Basic256Sha256 with Sign
// and SignAndEncrypt; accepts anonymous clients and the user `operator` with password `secret`. Prints `listening opc.tcp://…`
// when it is ready.
//
// node-opcua is loaded from the folder NODE_OPCUA_HOME (the one that contains node_modules), or by the usual rules.

import { createRequire } from "node:module";
import path from "node:path";
import { parseArgs } from "node:util";

const home = process.env.NODE_OPCUA_HOME;
const require = createRequire(home ? path.join(home, "package.json") : import.meta.url);
const {
    DataType,
    ExpandedNodeId,
    MessageSecurityMode,
    NodeIdType,
    OPCUACertificateManager,
    OPCUAServer,
    SecurityPolicy,
    StatusCodes,
    Variant,
    VariantArrayType,
    makeNodeId,
} = require("node-opcua");

const { values: options } = parseArgs({
    options: {
        port: { type: "string", default: "48020" },
        nodes: { type: "string", default: "10" }, // counters
        period: { type: "string", default: "1" }, // seconds between two changes of the counters
        "bad-every": { type: "string", default: "0" }, // counters are bad for so many changes, then good for as many
        big: { type: "string", default: "0" }, // also a string of so many characters
        writable: { type: "boolean", default: false }, // also a folder `Setpoints` of nodes to write to
        "dead-ms": { type: "string", default: "1500" }, // so long the server waits for the device that is not there
        user: { type: "string", default: "operator" },
        password: { type: "string", default: "secret" },
        "users-only": { type: "boolean", default: false },
        "secure-only": { type: "boolean", default: false },
        pki: { type: "string", default: "pki" }, // folder of certificate and key
    },
});

const NAMESPACE = 1;
const date = new Date("2031-05-06T07:08:09.123Z");

// Name, OPC UA type, value, and for arrays their kind.
const scalars = [
    ["Boolean", DataType.Boolean, true],
    ["SByte", DataType.SByte, -128],
    ["Byte", DataType.Byte, 255],
    ["Int16", DataType.Int16, -32768],
    ["UInt16", DataType.UInt16, 65535],
    ["Int32", DataType.Int32, -2147483648],
    ["UInt32", DataType.UInt32, 4294967295],
    ["Int64", DataType.Int64, [0x80000000, 0]],
    ["UInt64", DataType.UInt64, [0xffffffff, 0xffffffff]],
    ["Float", DataType.Float, 0.5],
    ["Double", DataType.Double, 0.1],
    ["DoubleNaN", DataType.Double, NaN],
    ["DoubleInf", DataType.Double, Infinity],
    ["String", DataType.String, "Grüße"],
    ["DateTime", DataType.DateTime, date],
    ["Guid", DataType.Guid, "72962B91-FA75-4AE6-8D28-B404DC7DAF63"],
    ["ByteString", DataType.ByteString, Buffer.from([1, 2, 3])],
    ["XmlElement", DataType.XmlElement, "<a/>"],
    ["NodeId", DataType.NodeId, makeNodeId("Target", NAMESPACE)],
    ["ExpandedNodeId", DataType.ExpandedNodeId, new ExpandedNodeId(NodeIdType.NUMERIC, 7, NAMESPACE)],
    ["StatusCode", DataType.StatusCode, StatusCodes.BadUnexpectedError],
    ["QualifiedName", DataType.QualifiedName, { namespaceIndex: NAMESPACE, name: "name" }],
    ["LocalizedText", DataType.LocalizedText, { locale: "en", text: "text" }],
    ["Int32Array", DataType.Int32, new Int32Array([1, 2, 3]), VariantArrayType.Array],
    ["StringArray", DataType.String, ["a", "b"], VariantArrayType.Array],
    ["ByteArray", DataType.Byte, Buffer.from([0, 127, 255]), VariantArrayType.Array],
    ["DoubleArray", DataType.Double, new Float64Array([0.5, 1.5]), VariantArrayType.Array],
    ["EmptyArray", DataType.Double, new Float64Array([]), VariantArrayType.Array],
    ["Matrix", DataType.Int32, new Int32Array([1, 2, 3, 4, 5, 6]), VariantArrayType.Matrix, [2, 3]],
];

function addTypes(namespace, types) {
    for (const [name, dataType, value, arrayType, dimensions] of scalars) {
        const rank = arrayType === VariantArrayType.Matrix ? 2 : arrayType === VariantArrayType.Array ? 1 : -1;
        namespace.addVariable({
            componentOf: types,
            nodeId: `s=Types.${name}`,
            browseName: name,
            description: name === "Double" ? "A tenth" : undefined,
            dataType,
            valueRank: rank,
            arrayDimensions: dimensions,
            value: { dataType, value, arrayType: arrayType ?? VariantArrayType.Scalar, dimensions },
        });
    }
    const space = namespace.addressSpace;
    namespace.addVariable({
        componentOf: types,
        nodeId: "s=Types.Range",
        browseName: "Range",
        dataType: "Range",
        value: {
            dataType: DataType.ExtensionObject,
            value: space.constructExtensionObject(space.findDataType("Range"), { low: 0, high: 100 }),
        },
    });
    const big = Number(options.big);
    if (big > 0) {
        const value = { dataType: DataType.String, value: "x".repeat(big) };
        namespace.addVariable({ componentOf: types, nodeId: "s=Types.Big", browseName: "Big", dataType: "String", value });
    }
}

// Name and first value of each writable node; the name is that of the type.
const setpoints = [
    ["Boolean", false],
    ...["SByte", "Byte", "Int16", "UInt16", "Int32", "UInt32"].map((name) => [name, 0]),
    ["Int64", [0, 0]],
    ["UInt64", [0, 0]],
    ["Float", 0],
    ["Double", 0],
    ["String", ""],
    ["DateTime", new Date("2031-01-01T00:00:00Z")],
];

function addSetpoints(namespace, plant) {
    const folder = namespace.addFolder(plant, { nodeId: "s=Setpoints", browseName: "Setpoints" });
    for (const [name, value] of setpoints) {
        namespace.addVariable({
            componentOf: folder,
            nodeId: `s=Setpoint.${name}`,
            browseName: `Setpoint${name}`,
            dataType: name,
            accessLevel: "CurrentRead | CurrentWrite",
            value: { dataType: DataType[name], value, arrayType: VariantArrayType.Scalar },
        });
    }
    namespace.addVariable({
        componentOf: plant,
        nodeId: "s=Dead",
        browseName: "Dead",
        dataType: "UInt32",
        accessLevel: "CurrentRead | CurrentWrite",
        value: {
            get: () => new Variant({ dataType: DataType.UInt32, value: 0 }),
            set: (_value, callback) => {
                setTimeout(() => callback(null, StatusCodes.BadNoCommunication), Number(options["dead-ms"]));
            },
        },
    });
}

function addCounters(namespace, folder) {
    const counters = [];
    for (let i = 1; i <= Number(options.nodes); i++) {
        counters.push(
            namespace.addVariable({
                componentOf: folder,
                nodeId: `s=Counter${i}`,
                browseName: `Counter${i}`,
                dataType: "UInt32",
                value: { dataType: DataType.UInt32, value: 0 },
            }),
        );
    }
    let count = 0;
    setInterval(() => {
        count += 1;
        const now = new Date();
        const badEvery = Number(options["bad-every"]);
        const isBad = badEvery > 0 && Math.floor(count / badEvery) % 2 === 1;
        const status = isBad ? StatusCodes.BadSensorFailure : StatusCodes.Good;
        for (const counter of counters) {
            counter.setValueFromSource({ dataType: DataType.UInt32, value: count }, status, now);
        }
    }, Number(options.period) * 1000);
}

const serverCertificateManager = new OPCUACertificateManager({
    rootFolder: path.resolve(options.pki),
    automaticallyAcceptUnknownCertificate: true,
});
const modes = [MessageSecurityMode.Sign, MessageSecurityMode.SignAndEncrypt];
const server = new OPCUAServer({
    port: Number(options.port),
    hostname: "127.0.0.1",
    resourcePath: "/thalweg",
    serverCertificateManager,
    buildInfo: { productName: "Thalweg test server", manufacturerName: "NodeOPCUA", softwareVersion: "1" },
    serverInfo: { applicationUri: "urn:thalweg:test:node-opcua" },
    securityPolicies: options["secure-only"] ? [SecurityPolicy.Basic256Sha256] : [SecurityPolicy.None, SecurityPolicy.Basic256Sha256],
    securityModes: options["secure-only"] ? modes : [MessageSecurityMode.None, ...modes],
    allowAnonymous: !options["users-only"],
    userManager: { isValidUser: (name, password) => name === options.user && password === options.password },
    serverCapabilities: { maxSessions: 50 },
});
await server.initialize();
const namespace = server.engine.addressSpace.getOwnNamespace();
const objects = server.engine.addressSpace.rootFolder.objects;
const plant = namespace.addFolder(objects, { nodeId: "s=Plant", browseName: "Plant" });
const types = namespace.addFolder(plant, { nodeId: "s=Types", browseName: "Types" });
const counters = namespace.addFolder(plant, { nodeId: "s=Counters", browseName: "Counters" });
addTypes(namespace, types);
if (options.writable) {
    addSetpoints(namespace, plant);
}
addCounters(namespace, counters);
await server.start();
console.log(`listening opc.tcp://127.0.0.1:${options.port}/thalweg`);

for (const signal of ["SIGINT", "SIGTERM"]) {
    process.on(signal, async () => {
        await server.shutdown(100);
        process.exit(0);
    });
}
