//! Rows that grow column by column: what decoders fill, queries read, and files are made of.
//!
//! A column knows only the rows that have a value; rows that were passed over are null. So a row costs what it has, however
//! many columns its table has.

pub mod chunk;
pub mod data;
pub mod extras;
pub mod nested;
pub mod numbers;
pub mod slots;
pub mod space;
pub mod text;
pub mod values;
