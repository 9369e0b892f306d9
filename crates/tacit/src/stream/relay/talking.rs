//! What of a dialogue goes on under TLS, before the relay takes over.

use tacit_core::meter::Component;
use tacit_core::starttls::{Side, Step};

use crate::ledger::meter;
use crate::stream::connection::Connection;
use crate::stream::secure::{SealedPath, TalkingPath};
use crate::stream::talk::{Cut, Outcome, Talk, UnderTls};

use super::{End, Scratch, deliver, sealed};

/// Holds the dialogue until there is nothing more to look at, then relays.
pub(super) async fn run(scratch: &Scratch, path: Box<TalkingPath>, connection: &Connection) -> End {
    // Boxed: what only the dialogue needs is gone while the relay runs.
    match Box::pin(hold(path, connection)).await {
        Ok(sealed) => sealed::run(scratch, sealed, connection).await,
        Err(end) => end,
    }
}

/// `Err`: that was all.
async fn hold(path: Box<TalkingPath>, connection: &Connection) -> Result<Box<SealedPath>, End> {
    let TalkingPath { sealed, dialogue } = *path;
    let SealedPath { clear, tls, mut session, mut incomplete, initial } = sealed;
    let mut talk = Talk::with_initial(dialogue, initial);
    meter::switch(Component::Receive);
    let mut wire = UnderTls::new(&tls, &mut session, &mut incomplete, connection);
    let end = match talk.hold(&mut wire, Some(&clear)).await {
        Ok(Outcome::Step(Step::Relay)) => {
            let initial = Vec::new();
            return Ok(Box::new(SealedPath { clear, tls, session, incomplete, initial }));
        }
        Ok(Outcome::Step(Step::Refuse(refusal))) => End::Refused(refusal),
        Ok(Outcome::Step(_) | Outcome::Over) => End::Orderly,
        Err(Cut::Truncated) => End::Truncated,
        Err(Cut::Session(error)) => End::Session(error),
        Err(Cut::Broken(side, error)) => End::Broken { clear: side == Side::Program, error },
    };
    let (mut to_tls, mut to_clear) = talk.into_waiting();
    match &end {
        End::Orderly => clear.end_in_order(),
        End::Session(error) => {
            if let Some(alert) = error.alert() {
                // A key that is used up has nothing to say it with.
                let _ = session.seal_alert(alert, to_tls.tail());
            }
        }
        End::Refused(_) | End::Asked(_) | End::Truncated | End::Broken { .. } => {}
    }
    deliver((&mut to_tls, &tls), (&mut to_clear, &clear)).await;
    if !matches!(end, End::Orderly) {
        clear.reset();
    }
    if matches!(end, End::Broken { .. }) {
        tls.reset();
    }
    Err(end)
}
