//! Caches property names as text, per engine.
//!
//! QuickJS represents names as small integers (atoms). Converting one to text allocates, so the text of each name that
//! a script uses is kept, together with the value it was last set to: a script that writes the same text for every
//! message then shares one copy. The table has a reference to each atom it knows, so an atom cannot be reused for
//! another name.

use hashbrown::HashMap;
use rquickjs::qjs;
use thalweg_record::Text;

use super::value::{Atom, Ctx, JsResult};

/// Names with higher atom numbers, or beyond this count, are converted each time, because a script may create any
/// number of names.
const REMEMBERED_MAX: usize = 4096;
const ATOM_MAX: u32 = 1 << 16;
/// Longer names and texts are not cached, because this memory does not count against the engine's limit.
const TEXT_MAX: usize = 1024;

/// Atoms with this bit are array indexes and contain their number.
const INDEX_BIT: u32 = 1 << 31;

#[derive(Default)]
pub(super) struct Keys {
    slots: Vec<KeySlot>,
    atoms: HashMap<Text, qjs::JSAtom>,
    remembered: usize,
}

#[derive(Default)]
enum KeySlot {
    #[default]
    Unknown,
    /// A symbol: not a metadata key.
    Symbol,
    Named {
        name: Text,
        last_value: Text,
    },
}

impl Keys {
    /// The name as text; `None` for symbols.
    pub fn name(&mut self, ctx: Ctx, atom: qjs::JSAtom) -> Option<Text> {
        match self.slot(ctx, atom) {
            Some(KeySlot::Named { name, .. }) => Some(name.clone()),
            Some(_) => None,
            None => read(ctx, atom),
        }
    }

    /// Passes the name to `f`.
    pub fn with_name<R>(&mut self, ctx: Ctx, atom: qjs::JSAtom, f: impl FnOnce(&str) -> Option<R>) -> Option<R> {
        match self.slot(ctx, atom) {
            Some(KeySlot::Named { name, .. }) => f(name),
            Some(_) => None,
            None => read(ctx, atom).and_then(|name| f(&name)),
        }
    }

    /// The text to store for a key's new value, shared with the last equal one.
    pub fn share(&mut self, ctx: Ctx, atom: qjs::JSAtom, value: &str) -> Text {
        match self.slot(ctx, atom) {
            Some(KeySlot::Named { last_value, .. }) if value.len() <= TEXT_MAX => {
                if last_value != value {
                    *last_value = Text::new(value);
                }
                last_value.clone()
            }
            _ => Text::new(value),
        }
    }

    /// The atom of a name.
    pub fn atom(&mut self, ctx: Ctx, name: &str) -> JsResult<Atom> {
        if let Some(&known) = self.atoms.get(name) {
            return Ok(ctx.dup_atom(known));
        }
        let atom = ctx.atom(name)?;
        self.slot(ctx, atom.raw);
        Ok(atom)
    }

    fn slot(&mut self, ctx: Ctx, atom: qjs::JSAtom) -> Option<&mut KeySlot> {
        let at = atom as usize;
        if atom >= ATOM_MAX {
            return None;
        }
        if matches!(self.slots.get(at), None | Some(KeySlot::Unknown)) {
            if self.remembered >= REMEMBERED_MAX {
                return None;
            }
            let name = read(ctx, atom);
            if name.as_ref().is_some_and(|name| name.len() > TEXT_MAX) {
                return None;
            }
            self.remembered += 1;
            if self.slots.len() <= at {
                self.slots.resize_with(at + 1, KeySlot::default);
            }
            let slot = self.slots.get_mut(at)?;
            *slot = match name {
                Some(name) => {
                    self.atoms.insert(name.clone(), atom);
                    KeySlot::Named {
                        name,
                        last_value: Text::default(),
                    }
                }
                None => KeySlot::Symbol,
            };
            // SAFETY: the atom is alive; the reference is kept for the life of the runtime.
            unsafe { qjs::JS_DupAtom(ctx.0, atom) };
        }
        self.slots.get_mut(at)
    }
}

fn read(ctx: Ctx, atom: qjs::JSAtom) -> Option<Text> {
    if atom & INDEX_BIT != 0 {
        return Some((atom & !INDEX_BIT).to_string().into());
    }
    // SAFETY: the atom is alive.
    let value = ctx.own(unsafe { qjs::JS_AtomToValue(ctx.0, atom) }).ok()?;
    if !value.is_string() {
        return None;
    }
    value.with_text(|text| Text::new(text)).ok()
}
