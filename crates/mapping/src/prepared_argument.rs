//! Arguments that are prepared: patterns, time layouts, paths. A literal is prepared when the mapping is compiled. A
//! computed one is prepared when its text changes, so that a pattern from metadata is not compiled for each message.

use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_record::Text;

use crate::context::EvalContext;
use crate::error::{EvalResult, Fault, SyntaxError};
use crate::expr::Expr;
use crate::view;

pub(crate) enum PreparedArgument<T> {
    Fixed(T),
    Computed {
        argument: &'static str,
        text: Expr,
        prepare: PrepareFn<T>,
        last: Mutex<Option<(Text, Arc<T>)>>,
    },
}

type PrepareFn<T> = fn(&str) -> Result<T, String>;

impl<T> PreparedArgument<T> {
    pub fn new(
        argument: &'static str,
        text: Expr,
        at: usize,
        prepare: PrepareFn<T>,
    ) -> Result<PreparedArgument<T>, SyntaxError> {
        if let Expr::Literal(literal) = &text
            && let Some(literal) = view::text(literal)
        {
            let prepared = prepare(&literal).map_err(|message| SyntaxError::new(at, message))?;
            return Ok(PreparedArgument::Fixed(prepared));
        }
        Ok(PreparedArgument::Computed {
            argument,
            text,
            prepare,
            last: Mutex::new(None),
        })
    }

    /// Runs `use_it` with the prepared argument.
    pub fn with<R>(
        &self,
        context: &mut EvalContext<'_>,
        use_it: impl FnOnce(&T, &mut EvalContext<'_>) -> EvalResult<R>,
    ) -> EvalResult<R> {
        match self {
            PreparedArgument::Fixed(prepared) => use_it(prepared, context),
            PreparedArgument::Computed {
                argument,
                text,
                prepare,
                last,
            } => {
                let value = text.value("string", context)?;
                let text = view::need_text(&value)
                    .map_err(|fault| fault.from(|| format!("argument `{argument}`, {}", text.describe())))?;
                let remembered = last
                    .lock()
                    .as_ref()
                    .filter(|(key, _)| *key == *text)
                    .map(|(_, p)| p.clone());
                let prepared = match remembered {
                    Some(prepared) => prepared,
                    None => {
                        let prepared = Arc::new(prepare(&text).map_err(Fault::text)?);
                        *last.lock() = Some((Text::new(&text), prepared.clone()));
                        prepared
                    }
                };
                use_it(&prepared, context)
            }
        }
    }
}
