//! A process that means harm connects as an importer: it wastes what it was given, and nothing else.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg};
use transship_ipc::{Connection, Exporter, IpcError};

use crate::hostile_loader::{message, socket};
use crate::support::{LONG, batch, case, eventually, folder, held};
use crate::tree_child::{Role, spawn};

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        case("an_importer_that_breaks_the_rules_is_sent_away", one_that_breaks_the_rules_is_sent_away),
        case("an_importer_that_does_nothing_is_in_nobodys_way", one_that_does_nothing_is_in_nobodys_way),
        case("descriptors_that_importers_send_are_closed", descriptors_that_importers_send_are_closed),
    ]
}

/// What is done with an importer that has been given ticket 0, and another one that does no harm.
fn with_hostile(hostile: impl FnOnce(&OwnedFd, &mut Connection)) {
    let (_folder, path) = folder();
    let exporter = Exporter::bind(&path).unwrap();
    let raw = socket(&path);
    let mut connection = exporter.accept_within(LONG).unwrap();
    let offer = connection.export(&batch(0)).unwrap();
    let good = spawn(&path, Role::Importer, None);
    let mut to_good = exporter.accept_within(LONG).unwrap();
    hostile(&raw, &mut connection);
    let offers = [0, 1].map(|number| to_good.export(&batch(number)).unwrap());
    offers.iter().for_each(|offer| offer.wait_released(LONG).unwrap());
    drop(raw);
    offer.wait_released(LONG).unwrap();
    assert!(matches!(connection.export(&batch(0)), Err(IpcError::PeerGone)));
    drop(to_good);
    good.join();
}

/// Reads what is there until the connection ends.
fn ends(socket: &OwnedFd) {
    set_socket_timeout(socket, Timeout::Recv, Some(Duration::from_secs(10))).unwrap();
    let mut bytes = [0; 40];
    let last = loop {
        match recv(socket, &mut bytes, RecvFlags::empty()) {
            Ok((_, length)) if length > 0 => {}
            last => break last.map(|(_, length)| length),
        }
    };
    assert!(matches!(last, Ok(0) | Err(Errno::CONNRESET)), "{last:?}");
}

/// catches: 569-what-nobody-has-is-given-back
fn one_that_breaks_the_rules_is_sent_away() {
    let lies: [(&[u8], usize); 9] = [
        (&message(7, [1, 0, 0, 0]), 1),
        (&message(7, [u64::MAX, 0, 0, 0]), 1),
        (&message(7, [0, 0, 0, 0]), 2),
        (&message(6, [0, 0, 0, 0]), 1),
        (&message(3, [0, 0, 0, 0]), 1),
        (&message(4, [0, 0, 0, 20]), 1),
        (&[0; 40], 1),
        (b"GET / HTTP/1.1", 1),
        (&[0x54; 4000], 1),
    ];
    for (lie, times) in lies {
        with_hostile(|raw, connection| {
            for _ in 0..times {
                let _ = send(raw, lie, SendFlags::NOSIGNAL);
            }
            ends(raw);
            eventually("nothing is lent", || connection.lent() == 0);
        });
    }
}

fn one_that_does_nothing_is_in_nobodys_way() {
    with_hostile(|raw, connection| {
        let begin = std::time::Instant::now();
        while connection.lent() < 128 {
            connection.export(&vec![transship_core::Tensor::from(vec![1_u8])]).unwrap();
        }
        assert!(matches!(connection.export(&batch(0)), Err(IpcError::TooManyTrees { .. })));
        assert!(begin.elapsed() < Duration::from_secs(20));
        // It was told nothing but offers.
        let mut bytes = [0; 40];
        assert_eq!(recv(raw, &mut bytes, RecvFlags::empty()).unwrap().1, 40);
        assert_eq!((&bytes[..5], bytes[5]), (&b"TSRG\x03"[..], 6));
    });
}

fn descriptors_that_importers_send_are_closed() {
    let before = held().0;
    with_hostile(|raw, _| {
        let many: Vec<_> = (0..100).map(|_| raw.as_fd()).collect();
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        let bytes = message(7, [0; 4]);
        let _ = sendmsg(raw, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
    });
    eventually("no descriptor was kept", || held().0 == before);
}
