//! Receives and logs reports from the helper of a run (the process that acts inside the run's
//! namespaces). The helper sends a report if it refuses to create a socket for a program. It also
//! sends a report if it cannot hide a file from the program.
//!
//! Limits: after [`REPORTS_AT_ONCE_MAX`] reports, the agent reads no further report for [`PAUSE`].
//! So a malicious helper of another user cannot keep the control thread busy.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::oneshot;

use crate::log::{Event, Log};
use crate::run::Run;
use crate::run::channel::{adopt, read_frame, write_frame};
use crate::run::protocol::{HelperReport, HelperRequest, REPORT_BYTES_MAX};
use crate::session::{RefusalTable, account};

/// The number of reports that are received without a pause.
const REPORTS_AT_ONCE_MAX: usize = 80;
/// The time between two batches of reports.
const PAUSE: Duration = Duration::from_millis(50);
/// How long reports are received after the end of the run.
const LAST_WAIT_MAX: Duration = Duration::from_secs(1);

/// Receives the reports of one run.
pub(super) struct ReportReceiver {
    pub(super) run: Arc<Run>,
    pub(super) refusals: Arc<RefusalTable>,
    pub(super) log: Log,
}

impl ReportReceiver {
    /// Receives reports until the helper has ended, or until [`LAST_WAIT_MAX`] after the end of the
    /// run, when the sender of `run_ended` is dropped.
    pub(super) async fn receive(self, run_ended: oneshot::Receiver<()>) {
        let receive = self.receive_all();
        tokio::pin!(receive);
        tokio::select! {
            biased;
            // An older helper does not send reports and closes the channel. If the helper is
            // killed, its successor cannot receive notifications of the filter any more.
            _ = &mut receive => return,
            _ = run_ended => {}
        }
        let _ = tokio::time::timeout(LAST_WAIT_MAX, receive).await;
    }

    async fn receive_all(&self) -> io::Result<()> {
        let mut channel: UnixStream = adopt(self.run.helper.another().await?)?;
        write_frame(&mut channel, &HelperRequest::Reports).await?;
        let mut received = 0;
        while let Some(frame) = read_frame(&mut channel, REPORT_BYTES_MAX).await? {
            self.take(frame.message);
            received += 1;
            if received % REPORTS_AT_ONCE_MAX == 0 {
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    fn take(&self, report: HelperReport) {
        match report {
            HelperReport::Refused(refused) => {
                account::refused_socket(&self.log, &self.refusals, &self.run, refused);
            }
            HelperReport::Unreported => {
                let event = Event::new("refused-sockets-unreported").field("run", &self.run.name);
                self.log.warn(event);
            }
            HelperReport::Connects(connects) => self.run.note_connects(connects),
            HelperReport::NotHidden(reason) => {
                let event = Event::new("files-not-hidden").field("run", &self.run.name);
                let next = "programs of the run may be able to read this file, because the helper \
                            of the run could not hide the file; the helper tries again every \
                            second";
                self.log.error(event.field("error", &reason).field("next", next));
            }
        }
    }
}
