//! The actions on a set that this process started, for the screen and the page.
//!
//! The processes have one owner, the loop of `up`. Whoever wants something done leaves an order and
//! waits for its outcome, so that two people cannot break the same member at once.

use std::sync::Arc;

use quorate_protocol::ServerAddress;
use tokio::sync::{mpsc, oneshot};

use crate::view::actions::{Action, ActionError, Actions, Performed};

/// How many orders may wait.
const MAX_ORDERS: usize = 16;

/// Something that somebody wants done.
pub(super) struct Order {
    pub(super) action: Action,
    pub(super) member: ServerAddress,
    pub(super) outcome: oneshot::Sender<Result<String, ActionError>>,
}

/// Leaves orders.
struct Levers(mpsc::Sender<Order>);

/// The levers, and the orders that they leave.
pub(super) fn levers() -> (Arc<dyn Actions>, mpsc::Receiver<Order>) {
    let (sender, orders) = mpsc::channel(MAX_ORDERS);
    (Arc::new(Levers(sender)), orders)
}

impl Actions for Levers {
    fn perform<'a>(&'a self, action: Action, member: &'a ServerAddress) -> Performed<'a> {
        Box::pin(async move {
            let (outcome, told) = oneshot::channel();
            let order = Order { action, member: member.clone(), outcome };
            self.0.send(order).await.map_err(|_| ActionError::Ending)?;
            told.await.unwrap_or(Err(ActionError::Ending))
        })
    }
}
