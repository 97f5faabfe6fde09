//! Arithmetic: operators and functions from numbers to numbers, and computations that consist only of these.
//!
//! Most scripts that change a value scale it. Where the value is a number, that is done without the values and objects
//! of a call.

use super::heap::{Js, PAYLOAD};
use super::ir::{Binary, Element, Expr, Global};
use super::number::to_i32;
use super::split::MSG;

/// A computation in steps; each step computes a number from that of the previous step.
#[derive(Debug)]
pub(super) struct Arithmetic {
    steps: Vec<Term>,
}

#[derive(Debug)]
enum Term {
    /// The input of the step.
    Given,
    Constant(f64),
    Of(fn(f64) -> f64, Box<Term>),
    OfTwo(fn(f64, f64) -> f64, Box<Term>, Box<Term>),
}

impl Arithmetic {
    /// Built from assignments to `msg.payload`; `None` if one of them does more than arithmetic.
    pub fn of_assignments<'e>(assignments: impl IntoIterator<Item = &'e Expr>) -> Option<Arithmetic> {
        let steps: Option<Vec<Term>> = assignments.into_iter().map(step).collect();
        steps.map(|steps| Arithmetic { steps })
    }

    pub fn of(&self, number: f64) -> f64 {
        self.steps.iter().fold(number, |number, step| step.of(number))
    }
}

fn step(assignment: &Expr) -> Option<Term> {
    match assignment {
        Expr::Assign(_, value) => term(value),
        Expr::AssignBinary(_, binary, value) => Some(Term::OfTwo(
            operator(*binary)?,
            Box::new(Term::Given),
            Box::new(term(value)?),
        )),
        _ => None,
    }
}

fn term(expr: &Expr) -> Option<Term> {
    let boxed = |expr| term(expr).map(Box::new);
    Some(match expr {
        Expr::Constant(Js::Number(number)) => Term::Constant(*number),
        Expr::Member(holder, name) if name == PAYLOAD && matches!(**holder, Expr::Local(MSG)) => Term::Given,
        Expr::ToNumber(inner) => term(inner)?,
        Expr::Negate(inner) => Term::Of(|n| -n, boxed(inner)?),
        Expr::Binary(binary, left, right) => Term::OfTwo(operator(*binary)?, boxed(left)?, boxed(right)?),
        Expr::Global(global, arguments) => match arguments.as_slice() {
            [Element::One(argument)] => Term::Of(function(*global)?, boxed(argument)?),
            _ => return None,
        },
        _ => return None,
    })
}

impl Term {
    fn of(&self, given: f64) -> f64 {
        match self {
            Term::Given => given,
            Term::Constant(number) => *number,
            Term::Of(function, inner) => function(inner.of(given)),
            Term::OfTwo(operator, left, right) => operator(left.of(given), right.of(given)),
        }
    }
}

/// An operator as a function of two numbers, if its result is a number.
pub(super) fn operator(operator: Binary) -> Option<fn(f64, f64) -> f64> {
    Some(match operator {
        Binary::Add => |a, b| a + b,
        Binary::Subtract => |a, b| a - b,
        Binary::Multiply => |a, b| a * b,
        Binary::Divide => |a, b| a / b,
        Binary::Remainder => |a, b| a % b,
        Binary::Power => power,
        Binary::ShiftLeft => |a, b| f64::from(to_i32(a) << shift(b)),
        Binary::ShiftRight => |a, b| f64::from(to_i32(a) >> shift(b)),
        Binary::ShiftRightZero => |a, b| f64::from((to_i32(a) as u32) >> shift(b)),
        Binary::BitAnd => |a, b| f64::from(to_i32(a) & to_i32(b)),
        Binary::BitOr => |a, b| f64::from(to_i32(a) | to_i32(b)),
        Binary::BitXor => |a, b| f64::from(to_i32(a) ^ to_i32(b)),
        _ => return None,
    })
}

// Rust implements these three with formulas of its own, whose last digits differ from the C library that QuickJS calls.
// For the other functions Rust calls the C library too. SAFETY: they are functions of a number in the C library that is
// linked anyway.
unsafe extern "C" {
    safe fn acosh(n: f64) -> f64;
    safe fn asinh(n: f64) -> f64;
    safe fn atanh(n: f64) -> f64;
}

/// A built-in as a function of one number, if its result is a number.
pub(super) fn function(global: Global) -> Option<fn(f64) -> f64> {
    use Global as G;
    Some(match global {
        G::MathAbs => f64::abs,
        G::MathAcos => f64::acos,
        G::MathAcosh => |n| acosh(n),
        G::MathAsin => f64::asin,
        G::MathAsinh => |n| asinh(n),
        G::MathAtan => f64::atan,
        G::MathAtanh => |n| atanh(n),
        G::MathCbrt => f64::cbrt,
        G::MathCeil => f64::ceil,
        G::MathClz32 => |n| f64::from((to_i32(n) as u32).leading_zeros()),
        G::MathCos => f64::cos,
        G::MathCosh => f64::cosh,
        G::MathExp => f64::exp,
        G::MathExpm1 => f64::exp_m1,
        G::MathFloor => f64::floor,
        G::MathFround => |n| f64::from(n as f32),
        G::MathLog => f64::ln,
        G::MathLog10 => f64::log10,
        G::MathLog1p => f64::ln_1p,
        G::MathLog2 => f64::log2,
        G::MathRound => rounded,
        G::MathSign => sign,
        G::MathSin => f64::sin,
        G::MathSinh => f64::sinh,
        G::MathSqrt => f64::sqrt,
        G::MathTan => f64::tan,
        G::MathTanh => f64::tanh,
        G::MathTrunc => f64::trunc,
        _ => return None,
    })
}

/// `Math.imul(a, b)`.
pub(super) fn whole_product(a: f64, b: f64) -> f64 {
    f64::from(to_i32(a).wrapping_mul(to_i32(b)))
}

/// `a ** b`.
pub(super) fn power(a: f64, b: f64) -> f64 {
    // JavaScript returns NaN where the C library returns 1.
    if !b.is_finite() && a.abs() == 1.0 {
        return f64::NAN;
    }
    a.powf(b)
}

fn shift(by: f64) -> u32 {
    to_i32(by) as u32 & 31
}

fn rounded(n: f64) -> f64 {
    if n.fract() == 0.0 || !n.is_finite() {
        return n;
    }
    let below = n.floor();
    let near = if n - below >= 0.5 { below + 1.0 } else { below };
    near.copysign(n)
}

fn sign(n: f64) -> f64 {
    if n == 0.0 || n.is_nan() { n } else { n.signum() }
}
