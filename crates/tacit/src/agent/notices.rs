//! What the helper of a run reports of sockets that its programs are refused.
//!
//! Limits: [`REPORTS_AT_ONCE_MAX`] reports, then a pause: the helper of another user must not keep
//! the control thread busy. An honest one sends fewer.

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

/// Reports that are taken without a pause.
const REPORTS_AT_ONCE_MAX: usize = 80;
/// The pause.
const PAUSE: Duration = Duration::from_millis(50);
/// How long the last reports of a run that has ended are read.
const LAST_WAIT_MAX: Duration = Duration::from_secs(1);

/// Takes the reports of one run.
pub(super) struct Follower {
    pub(super) run: Arc<Run>,
    pub(super) refusals: Arc<RefusalTable>,
    pub(super) log: Log,
}

impl Follower {
    /// Takes reports until the helper has ended, or for a moment after the end of the run, when the
    /// other end of `run_ended` is dropped.
    pub(super) async fn follow(self, run_ended: oneshot::Receiver<()>) {
        let follow = self.take_all();
        tokio::pin!(follow);
        tokio::select! {
            biased;
            // An older helper knows no reports and closes the line; one that is killed leaves its
            // successor no listener.
            _ = &mut follow => return,
            _ = run_ended => {}
        }
        let _ = tokio::time::timeout(LAST_WAIT_MAX, follow).await;
    }

    async fn take_all(&self) -> io::Result<()> {
        let mut line: UnixStream = adopt(self.run.helper.another().await?)?;
        write_frame(&mut line, &HelperRequest::Reports).await?;
        let mut taken = 0;
        while let Some(frame) = read_frame(&mut line, REPORT_BYTES_MAX).await? {
            self.take(frame.message);
            taken += 1;
            if taken % REPORTS_AT_ONCE_MAX == 0 {
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
        }
    }
}
