//! The cases, in the order in which they run.

#[path = "../../../tests/device/captures.rs"]
mod captures;
mod devices;
#[path = "../../../tests/device/forgotten.rs"]
mod forgotten;
#[path = "../../../tests/device/guard.rs"]
mod guard;
#[path = "../../../tests/device/litmus.rs"]
mod litmus;
#[path = "../../../tests/device/memory.rs"]
mod memory;
#[path = "../../../tests/device/nodes.rs"]
mod nodes;
#[path = "../../../tests/device/out_of_memory.rs"]
mod out_of_memory;
#[path = "../../../tests/device/peers.rs"]
mod peers;
#[path = "../../../tests/device/recorded.rs"]
mod recorded;
#[path = "../../../tests/device/stalled.rs"]
mod stalled;
#[path = "../../../tests/device/steady.rs"]
mod steady;
#[path = "../../../tests/device/streams.rs"]
mod streams;
mod views;

use views::forgets_views;

use crate::suite::{Case, case};

pub(crate) fn all() -> Vec<Case> {
    let mut cases = vec![
        case!(stalled::nothing_waits_for_a_stalled_stream),
        case!(steady::a_copy_up_in_a_steady_state),
        case!(views::a_view_waits_for_its_copy),
        case!(views::memory_is_not_reused_before_its_last_use),
        case!(views::other_tensors_and_streams_are_refused),
        case!(views::a_stream_that_is_passed_off_as_one_of_the_device_is_refused, devices: 2),
        case!(devices::the_first_device_stays_current),
        case!(devices::another_device_stays_current, devices: 2),
        case!(devices::a_stream_of_another_device_is_refused, devices: 2),
        case!(streams::copies_run_on_the_streams_of_others),
        case!(streams::the_default_stream_of_each_thread_is_refused),
        case!(streams::one_stream_waits_for_another),
        case!(forgotten::a_forgotten_view_keeps_its_memory),
        case!(litmus::all_on_the_callers_stream),
        case!(litmus::a_consumer_on_another_stream_waits),
        case!(litmus::a_consumer_that_is_not_told_is_caught),
        case!(litmus::a_producer_is_waited_for_if_the_tensor_knows_it),
        case!(litmus::a_captured_stream_is_not_handed_a_copy),
        case!(streams::time_passes_between_marks),
        case!(streams::high_priority_is_higher),
        case!(memory::memory_of_others_is_freed_after_its_last_use),
        case!(memory::many_pieces_of_one_allocation_cost_as_much_as_one),
        case!(memory::refilled_memory_keeps_the_streams_that_it_was_handed_to),
        case!(memory::memory_that_goes_during_a_capture_comes_back_behind_it),
        case!(memory::a_stream_that_is_wrapped_for_each_request_is_noted_once),
        case!(memory::page_locked_memory_of_others_is_known),
        case!(memory::page_locked_memory_of_others_is_written_by_the_device),
        case!(memory::wrong_addresses_are_refused),
        case!(memory::an_empty_pinned_tensor_is_page_locked),
        case!(nodes::pinned_memory_is_placed_where_the_driver_says),
        case!(out_of_memory::more_than_the_device_has_is_too_large),
        case!(out_of_memory::a_full_device_says_so_and_recovers),
        case!(peers::tensors_go_from_device_to_device, devices: 2),
        case!(peers::a_source_that_is_still_being_filled_is_waited_for, devices: 2),
        case!(peers::parts_come_in_the_order_of_the_targets_stream, devices: 2),
        case!(peers::columns_of_memory_of_others_go_to_another_device, devices: 2),
        case!(peers::memory_of_others_is_filled_by_the_device_of_the_source, devices: 2),
        case!(captures::copies_do_not_break_the_capture_of_another_thread),
        case!(captures::growing_does_not_break_the_capture_of_another_thread),
        case!(captures::a_copy_on_a_captured_stream_is_refused, may_leak: true),
        case!(recorded::a_graph_copies_what_is_there_when_it_is_launched),
        case!(recorded::a_graph_keeps_the_memory_of_its_copies),
        case!(recorded::a_launch_keeps_the_memory_of_its_copies),
        case!(recorded::what_a_graph_cannot_hold_is_refused),
    ];
    cases.extend(litmus::of_the_child().into_iter().chain(forgotten::of_the_child()));
    cases
}
