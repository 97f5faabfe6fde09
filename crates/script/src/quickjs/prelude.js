// Prepares a new realm, before any script is compiled. `mode` is "sealed", "tidy" or "open" (see scan.rs);
// `materialise` turns a lazy object into an ordinary one, `look` throws once the time is up, and `timed` makes a function of one that
// looks first. Returns what the engine needs from inside the realm.
(function (mode, materialise, look, timed) {
  "use strict";
  const {
    defineProperty, freeze, getOwnPropertyDescriptor, getPrototypeOf, preventExtensions,
  } = Object;
  const { ownKeys, apply } = Reflect;
  const { isArray } = Array;
  const toList = Array.from;
  const hasOwn = Object.prototype.hasOwnProperty;
  const global = globalThis;

  // State of the realm that freezing does not reach; not part of the language.
  delete Error.prepareStackTrace;
  delete Error.stackTraceLimit;

  // Freezing decides over the properties an object has, so lazy ones must have theirs first.
  function materialiseBefore(holder, name) {
    const inner = holder[name];
    const outer = {
      [name](object) {
        materialise(object);
        return inner(object);
      },
    }[name];
    defineProperty(holder, name, { value: outer, writable: true, enumerable: false, configurable: true });
  }
  for (const name of ["freeze", "seal", "preventExtensions"]) materialiseBefore(Object, name);
  materialiseBefore(Reflect, "preventExtensions");

  // The engine looks at the clock every 10,000 steps of a script, of which each built-in function is one. Those that walk over the
  // whole length of an array, holes included, would walk for ever over a length that nobody has memory for.
  const lengthMax = 2 ** 24;
  function refuseEndless(value) {
    if (value !== null && value !== undefined && value.length > lengthMax) {
      throw new RangeError("an array of more than " + lengthMax + " elements");
    }
    if (value !== null && value !== undefined && value.length > 4096) look();
  }
  function bounded(name) {
    const inner = Array.prototype[name];
    const outer = {
      [name]() {
        refuseEndless(this);
        if (name === "concat") {
          for (let i = 0; i < arguments.length; i++) if (isArray(arguments[i])) refuseEndless(arguments[i]);
        }
        return apply(inner, this, arguments);
      },
    }[name];
    defineProperty(outer, "length", { value: inner.length, writable: false, enumerable: false, configurable: true });
    defineProperty(Array.prototype, name, { value: outer, writable: true, enumerable: false, configurable: true });
  }
  const walking = [
    "concat", "copyWithin", "every", "fill", "filter", "flat", "flatMap", "forEach", "includes", "indexOf", "join",
    "lastIndexOf", "map", "reduce", "reduceRight", "reverse", "shift", "slice", "some", "sort", "splice",
    "toLocaleString", "toReversed", "toSorted", "toSpliced", "unshift", "with",
  ];
  walking.filter((name) => Array.prototype[name]).forEach(bounded);

  // Of the others, those that make something are stopped by the memory that they ask for. These do not ask for any.
  function lookingFirst(holder, name) {
    const inner = holder[name];
    const outer = timed(inner);
    defineProperty(outer, "name", { value: name, writable: false, enumerable: false, configurable: true });
    defineProperty(outer, "length", { value: inner.length, writable: false, enumerable: false, configurable: true });
    defineProperty(holder, name, { value: outer, writable: true, enumerable: false, configurable: true });
  }
  for (const name of ["endsWith", "includes", "indexOf", "lastIndexOf", "startsWith"]) lookingFirst(String.prototype, name);
  const typed = getPrototypeOf(Uint8Array.prototype);
  for (const name of ["copyWithin", "fill", "includes", "indexOf", "lastIndexOf", "reverse", "set", "sort"]) {
    lookingFirst(typed, name);
  }

  // Objects that are found by using the language, not by a global name.
  const iterators = [
    [][Symbol.iterator](), ""[Symbol.iterator](), new Map().entries(), new Set().values(), "".matchAll(/x/g),
    [].values().map((x) => x), Iterator.from({ next() {} }),
  ];
  if (Iterator.concat) iterators.push(Iterator.concat([1]));
  const hidden = [
    function* () {}, async function () {}, async function* () {}, (function* () {})(), (async function* () {})(),
    getOwnPropertyDescriptor((function () { return arguments; })(), "callee").get,
    ...iterators,
  ].map((object) => (typeof object === "function" ? object : getPrototypeOf(object)));

  // A frozen prototype must not keep objects below it from having a property of the same name: `error.name = "x"`.
  // Such properties become accessors whose setter gives the object its own.
  const behindAccessors = [];
  function allowOverride(prototype, name) {
    const old = getOwnPropertyDescriptor(prototype, name);
    if (!old || !("value" in old) || !old.configurable) return;
    const value = old.value;
    behindAccessors.push(value);
    defineProperty(prototype, name, {
      get() {
        return value;
      },
      set(replacement) {
        if (this === prototype) throw new TypeError("cannot assign to '" + String(name) + "' of a built-in object");
        defineProperty(this, name, { value: replacement, writable: true, enumerable: true, configurable: true });
      },
      enumerable: old.enumerable,
      configurable: false,
    });
  }

  function allowOverrides() {
    for (const name of ownKeys(Object.prototype)) allowOverride(Object.prototype, name);
    const errors = [Error, EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError, AggregateError];
    for (const error of errors) {
      for (const name of ["constructor", "name", "message", "toString"]) allowOverride(error.prototype, name);
    }
    for (const type of [Array, Date, Function, Map, Number, Promise, RegExp, Set, String, Boolean]) {
      for (const name of ["toString", "valueOf", "toJSON", "toLocaleString"]) allowOverride(type.prototype, name);
    }
  }

  function freezeAll() {
    const seen = new Set([global]);
    const waiting = [];
    const visit = (value) => {
      const object = (typeof value === "object" && value !== null) || typeof value === "function";
      if (object && !seen.has(value)) {
        seen.add(value);
        waiting.push(value);
      }
    };
    const visitMembers = (object) => {
      visit(getPrototypeOf(object));
      for (const key of ownKeys(object)) {
        const member = getOwnPropertyDescriptor(object, key);
        visit(member.value);
        visit(member.get);
        visit(member.set);
      }
    };
    hidden.forEach(visit);
    behindAccessors.forEach(visit);
    visitMembers(global);
    while (waiting.length > 0) {
      const object = waiting.pop();
      visitMembers(object);
      freeze(object);
    }
  }

  if (mode !== "open") {
    allowOverrides();
    freezeAll();
    for (const key of ownKeys(global)) {
      const member = getOwnPropertyDescriptor(global, key);
      defineProperty(global, key, "value" in member ? { writable: false, configurable: false } : { configurable: false });
    }
    if (mode === "sealed") preventExtensions(global);
  }

  return {
    list: (collection) => toList(collection),
    boxed: [new Number(0), new String(""), new Boolean(false), Object(0n), Object(Symbol())],
  };
})
