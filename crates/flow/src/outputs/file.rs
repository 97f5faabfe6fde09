//! `file`: messages appended to files, acknowledged after the data is synced to disk. The path may depend on the message.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_config::{ComponentNode, Fields};
use thalweg_mapping::Interpolation;
use thalweg_record::{DropReason, Message};

use super::codec::Codec;
use super::writer::{Destination, Writer};
use crate::BoxFuture;
use crate::component::{BuildContext, BuildError};
use crate::output::{Output, Rejection, WriteError};
use crate::parse::ParseContext;
use crate::registry::OutputSpec;

/// Files held open at a time; beyond it the least recently written is closed.
const OPEN_FILES_MAX: usize = 256;

struct Spec {
    path: Arc<Interpolation>,
    codec: Codec,
}

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn OutputSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let path = fields.required_node("path");
    let codec = Codec::read(&mut fields);
    fields.finish();
    let path = Arc::new(context.interpolation(&path?)?);
    Some(Arc::new(Spec { path, codec }))
}

impl OutputSpec for Spec {
    fn build(&self, context: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        if let Some(path) = self.path.is_static() {
            let opened = open(Path::new(path));
            opened.map_err(|error| {
                BuildError::new(format!(
                    "cannot write to {path}: {error}; check that the folder exists and may be written"
                ))
            })?;
        }
        let writer = Writer::start(
            &context.component.name,
            Files {
                codec: self.codec.clone(),
                open: HashMap::new(),
                clock: 0,
                last: PathBuf::new(),
            },
        );
        let writer =
            writer.map_err(|error| BuildError::new(format!("cannot start a thread for the file output: {error}")))?;
        Ok(Arc::new(FileOutput {
            path: self.path.clone(),
            codec: self.codec.clone(),
            writer,
        }))
    }
}

struct FileOutput {
    path: Arc<Interpolation>,
    codec: Codec,
    writer: Writer<Vec<(PathBuf, Vec<u8>)>>,
}

impl Output for FileOutput {
    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        let mut parts: Vec<(PathBuf, Vec<u8>)> = Vec::new();
        let mut rejections = Vec::new();
        for (index, message) in messages.iter().enumerate() {
            match self.path.render(&messages, index) {
                Ok(path) => {
                    let path = Path::new(&*path);
                    match parts.last_mut() {
                        Some((last, bytes)) if last == path && self.codec != Codec::Replaces => {
                            self.codec.encode(message, bytes)
                        }
                        _ => {
                            let mut bytes = Vec::new();
                            self.codec.encode(message, &mut bytes);
                            parts.push((path.to_owned(), bytes));
                        }
                    }
                }
                Err(error) => {
                    let error = format!("no path for the message: {error}");
                    rejections.push(Rejection::permanent(index, DropReason::OutputRejected, error));
                }
            }
        }
        let write = self.writer.write(parts);
        Box::pin(async move {
            write.await?;
            if rejections.is_empty() {
                Ok(())
            } else {
                Err(WriteError::Some(rejections))
            }
        })
    }

    /// The thread keeps the order, and writes that wait together share a sync.
    fn max_in_flight(&self) -> usize {
        1
    }
}

struct Files {
    codec: Codec,
    open: HashMap<PathBuf, OpenFile>,
    clock: u64,
    last: PathBuf,
}

struct OpenFile {
    file: File,
    used: u64,
    unsynced: bool,
    /// Where the file ends when everything before was written: a failed write is cut off again.
    end: u64,
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

impl Files {
    fn file(&mut self, path: &Path) -> io::Result<&mut OpenFile> {
        self.clock += 1;
        if !self.open.contains_key(path) {
            if self.open.len() >= OPEN_FILES_MAX {
                self.close_oldest()?;
            }
            let file = open(path)?;
            let end = file.metadata()?.len();
            self.open.insert(
                path.to_owned(),
                OpenFile {
                    file,
                    used: 0,
                    unsynced: false,
                    end,
                },
            );
        }
        let clock = self.clock;
        let file = self.open.get_mut(path).ok_or(io::ErrorKind::NotFound)?;
        file.used = clock;
        Ok(file)
    }

    fn close_oldest(&mut self) -> io::Result<()> {
        let oldest = self
            .open
            .iter()
            .min_by_key(|(_, file)| file.used)
            .map(|(path, _)| path.clone());
        if let Some(file) = oldest.and_then(|path| self.open.remove(&path))
            && file.unsynced
        {
            file.file.sync_data()?;
        }
        Ok(())
    }
}

impl Destination for Files {
    type Job = Vec<(PathBuf, Vec<u8>)>;

    fn write(&mut self, parts: &Self::Job) -> io::Result<()> {
        for (path, bytes) in parts {
            self.last.clone_from(path);
            let replaces = self.codec == Codec::Replaces;
            let file = self.file(path)?;
            if replaces {
                file.file.set_len(0)?;
                file.end = 0;
            }
            file.unsynced = true;
            if let Err(error) = file.file.write_all(bytes) {
                // A full disk leaves a torn message behind, which the retry would follow.
                file.file.set_len(file.end)?;
                return Err(error);
            }
            file.end += bytes.len() as u64;
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        for (path, file) in self.open.iter_mut().filter(|(_, file)| file.unsynced) {
            self.last.clone_from(path);
            file.file.sync_data()?;
            file.unsynced = false;
        }
        Ok(())
    }

    fn describe(&self) -> String {
        self.last.display().to_string()
    }
}
