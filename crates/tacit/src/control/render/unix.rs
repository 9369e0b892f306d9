//! Formats the output of `tacit show unix` as a text table.

use super::Table;
use super::table::{Column, list, optional, table};
use super::width::TextWidth;
use crate::control::display::unix::{UnixDisplay, UnixSocketDisplay};

impl Table for UnixDisplay {
    fn text(&self, width: TextWidth) -> String {
        const COLUMNS: [Column<UnixSocketDisplay>; 11] = [
            ("RUN", |one| one.run.clone()),
            ("INODE", |one| one.socket.inode.to_string()),
            ("KIND", |one| one.socket.kind.clone()),
            ("STATE", |one| one.socket.state.clone()),
            ("NAME", |one| optional(one.socket.name.as_ref())),
            ("PEER", |one| optional(one.socket.peer)),
            ("PEER-NAME", |one| optional(one.peer_name.as_ref())),
            ("RECV-Q", |one| optional(one.socket.receive_queue)),
            ("SEND-Q", |one| optional(one.socket.send_queue)),
            ("PID", |one| list(&one.pids)),
            ("PROGRAM", |one| optional(one.program.as_ref().map(|path| path.display()))),
        ];
        let optional = &["INODE", "KIND", "RECV-Q", "SEND-Q", "PEER"];
        let mut text = table(&self.sockets, &COLUMNS, width.without(optional));
        for run in &self.incomplete {
            let line = format!(
                "(the list of UNIX sockets of run {} is incomplete: {})\n",
                run.run, run.reason
            );
            text.push_str(&width.prose(&line));
        }
        text
    }
}
