//! A script as it is run: names resolved to slots, methods to operations.

use smallvec::SmallVec;
use thalweg_record::Text;

use super::heap::Js;
use crate::ConsoleLevel;

/// A variable: the level of the function that declares it (0 is the script), and its index in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VariableSlot {
    pub level: u8,
    pub index: u16,
}

#[derive(Debug)]
pub(super) enum Expr {
    /// Never an object.
    Constant(Js),
    Local(VariableSlot),
    Member(Box<Expr>, Text),
    Index(Box<Expr>, Box<Expr>),
    /// `?.`: null and undefined make the whole chain undefined.
    OptionalMember(Box<Expr>, Text),
    OptionalIndex(Box<Expr>, Box<Expr>),
    Chain(Box<Expr>),
    /// Texts around values: one more text than values.
    Template(Vec<Text>, Vec<Expr>),
    Array(Vec<Element>),
    Object(Vec<Property>),
    Regex(usize),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    ToNumber(Box<Expr>),
    BitNot(Box<Expr>),
    TypeOf(Box<Expr>),
    Void(Box<Expr>),
    Delete(Box<Target>),
    Binary(Binary, Box<Expr>, Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Coalesce(Box<Expr>, Box<Expr>),
    Conditional(Box<Expr>, Box<Expr>, Box<Expr>),
    Assign(Box<Target>, Box<Expr>),
    /// `a += b` and the like.
    AssignBinary(Box<Target>, Binary, Box<Expr>),
    /// `a ||= b` and the like.
    AssignLogical(Box<Target>, Logical, Box<Expr>),
    /// `++` and `--`; `prefix` selects the resulting value.
    Update {
        target: Box<Target>,
        by: f64,
        prefix: bool,
    },
    Sequence(Vec<Expr>),
    /// A method call; the type of the receiver selects the operation.
    Call {
        receiver: Box<Expr>,
        method: Method,
        arguments: Vec<Argument>,
        optional: bool,
    },
    /// A built-in function.
    Global(Global, Vec<Element>),
    /// A function of the script.
    Function(usize, Vec<Expr>),
    Console(ConsoleLevel, Vec<Expr>),
    Cache(CacheCall, Vec<Expr>),
    /// `new Date(…)`.
    Date(Vec<Expr>),
}

#[derive(Debug)]
pub(super) enum Element {
    One(Expr),
    Spread(Expr),
}

#[derive(Debug)]
pub(super) enum Property {
    Named(Text, Expr),
    Computed(Expr, Expr),
    Spread(Expr),
}

/// The left side of an assignment.
#[derive(Debug)]
pub(super) enum Target {
    Local(VariableSlot),
    Member(Expr, Text),
    Index(Expr, Expr),
}

/// An argument of a method.
#[derive(Debug)]
pub(super) enum Argument {
    One(Expr),
    Spread(Expr),
    /// A function of the script, which the method calls.
    Function(usize),
    /// `String`, `Number` or `Boolean` in place of such a function.
    Convert(Global),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Power,
    ShiftLeft,
    ShiftRight,
    ShiftRightZero,
    BitAnd,
    BitOr,
    BitXor,
    Equal,
    NotEqual,
    StrictEqual,
    StrictNotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Logical {
    And,
    Or,
    Coalesce,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheCall {
    Set,
    Get,
    Exists,
    Delete,
}

/// A binding pattern.
#[derive(Debug)]
pub(super) enum Pattern {
    Slot(VariableSlot),
    Object(Vec<(Key, BindingElement)>),
    Array(Vec<Option<BindingElement>>, Option<Box<Pattern>>),
}

#[derive(Debug)]
pub(super) enum Key {
    Named(Text),
    Computed(Expr),
}

/// A pattern with its default value.
#[derive(Debug)]
pub(super) struct BindingElement {
    pub pattern: Pattern,
    pub default: Option<Expr>,
}

#[derive(Debug)]
pub(super) enum Stmt {
    Expr(Expr),
    Declare(Pattern, Expr),
    /// The declaration of a named function: from here on it can be called.
    Reach(VariableSlot),
    If(Expr, Box<Stmt>, Option<Box<Stmt>>),
    Block(Block),
    For {
        init: Option<Box<Stmt>>,
        test: Option<Expr>,
        update: Option<Expr>,
        body: Block,
    },
    ForOf(Pattern, Expr, Block),
    ForIn(Pattern, Expr, Block),
    While(Expr, Block),
    DoWhile(Block, Expr),
    Switch {
        value: Expr,
        /// Tests in order, with the index in `body` where each begins; `None` is the default.
        cases: Vec<(Option<Expr>, usize)>,
        body: Block,
    },
    Break,
    Continue,
    Return(Option<Expr>),
    /// Bails out: a `throw`.
    Bail(&'static str),
    Try(Block, Option<Block>),
}

/// Statements with the variables that are reset each time: first index in the frame, and one after the last.
#[derive(Debug, Default)]
pub(super) struct Block {
    pub fresh: Option<(u16, u16)>,
    pub body: Vec<Stmt>,
}

/// A function of the script, or the script itself.
#[derive(Debug, Default)]
pub(super) struct ScriptFunction {
    pub level: u8,
    pub parameters: Vec<BindingElement>,
    /// Number of variables, including parameters.
    pub slots: u16,
    /// Variables that are undefined from the start (`var`).
    pub hoisted: SmallVec<[u16; 4]>,
    pub body: Vec<Stmt>,
}

macro_rules! names {
    ($(#[$doc:meta])* $kind:ident { $($variant:ident = $name:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum $kind { $($variant),+ }

        impl $kind {
            /// By its name in scripts.
            pub fn named(name: &str) -> Option<$kind> {
                match name { $($name => Some($kind::$variant),)+ _ => None }
            }

            /// For tests that iterate over all of them.
            #[cfg(test)]
            pub const ALL: &'static [($kind, &'static str)] = &[$(($kind::$variant, $name)),+];
        }
    };
}

names! {
    /// Methods of texts, arrays, numbers, dates and regular expressions.
    Method {
        At = "at",
        CharAt = "charAt",
        CharCodeAt = "charCodeAt",
        CodePointAt = "codePointAt",
        Concat = "concat",
        EndsWith = "endsWith",
        Every = "every",
        Fill = "fill",
        Filter = "filter",
        Find = "find",
        FindIndex = "findIndex",
        Flat = "flat",
        FlatMap = "flatMap",
        ForEach = "forEach",
        GetTime = "getTime",
        GetUtcDate = "getUTCDate",
        GetUtcDay = "getUTCDay",
        GetUtcFullYear = "getUTCFullYear",
        GetUtcHours = "getUTCHours",
        GetUtcMilliseconds = "getUTCMilliseconds",
        GetUtcMinutes = "getUTCMinutes",
        GetUtcMonth = "getUTCMonth",
        GetUtcSeconds = "getUTCSeconds",
        HasOwnProperty = "hasOwnProperty",
        Includes = "includes",
        IndexOf = "indexOf",
        Join = "join",
        LastIndexOf = "lastIndexOf",
        LocaleCompare = "localeCompare",
        Map = "map",
        Match = "match",
        PadEnd = "padEnd",
        PadStart = "padStart",
        Pop = "pop",
        Push = "push",
        Reduce = "reduce",
        ReduceRight = "reduceRight",
        Repeat = "repeat",
        Replace = "replace",
        ReplaceAll = "replaceAll",
        Reverse = "reverse",
        Search = "search",
        Shift = "shift",
        Slice = "slice",
        Some = "some",
        Sort = "sort",
        Splice = "splice",
        Split = "split",
        StartsWith = "startsWith",
        Substr = "substr",
        Substring = "substring",
        Test = "test",
        ToExponential = "toExponential",
        ToFixed = "toFixed",
        ToIsoString = "toISOString",
        ToLowerCase = "toLowerCase",
        ToPrecision = "toPrecision",
        ToString = "toString",
        ToUpperCase = "toUpperCase",
        Trim = "trim",
        TrimEnd = "trimEnd",
        TrimStart = "trimStart",
        Unshift = "unshift",
        ValueOf = "valueOf",
    }
}

names! {
    /// Built-in functions with global names.
    Global {
        ArrayIsArray = "Array.isArray",
        Boolean = "Boolean",
        DateNow = "Date.now",
        DateParse = "Date.parse",
        IsFinite = "isFinite",
        IsNan = "isNaN",
        JsonParse = "JSON.parse",
        JsonStringify = "JSON.stringify",
        MathAbs = "Math.abs",
        MathAcos = "Math.acos",
        MathAcosh = "Math.acosh",
        MathAsin = "Math.asin",
        MathAsinh = "Math.asinh",
        MathAtan = "Math.atan",
        MathAtan2 = "Math.atan2",
        MathAtanh = "Math.atanh",
        MathCbrt = "Math.cbrt",
        MathCeil = "Math.ceil",
        MathClz32 = "Math.clz32",
        MathCos = "Math.cos",
        MathCosh = "Math.cosh",
        MathExp = "Math.exp",
        MathExpm1 = "Math.expm1",
        MathFloor = "Math.floor",
        MathFround = "Math.fround",
        MathHypot = "Math.hypot",
        MathImul = "Math.imul",
        MathLog = "Math.log",
        MathLog10 = "Math.log10",
        MathLog1p = "Math.log1p",
        MathLog2 = "Math.log2",
        MathMax = "Math.max",
        MathMin = "Math.min",
        MathPow = "Math.pow",
        MathRound = "Math.round",
        MathSign = "Math.sign",
        MathSin = "Math.sin",
        MathSinh = "Math.sinh",
        MathSqrt = "Math.sqrt",
        MathTan = "Math.tan",
        MathTanh = "Math.tanh",
        MathTrunc = "Math.trunc",
        Number = "Number",
        NumberIsFinite = "Number.isFinite",
        NumberIsInteger = "Number.isInteger",
        NumberIsNan = "Number.isNaN",
        NumberIsSafeInteger = "Number.isSafeInteger",
        NumberParseFloat = "Number.parseFloat",
        NumberParseInt = "Number.parseInt",
        ObjectAssign = "Object.assign",
        ObjectEntries = "Object.entries",
        ObjectFromEntries = "Object.fromEntries",
        ObjectHasOwn = "Object.hasOwn",
        ObjectKeys = "Object.keys",
        ObjectValues = "Object.values",
        ParseFloat = "parseFloat",
        ParseInt = "parseInt",
        String = "String",
        StringFromCharCode = "String.fromCharCode",
    }
}
