//! The cases, in the order in which they run.

#[path = "../../../tests/device/captures.rs"]
mod captures;
mod contexts;
mod cudarc;
#[path = "../../../tests/device/forgotten.rs"]
mod forgotten;
mod graphs;
#[path = "../../../tests/device/guard.rs"]
mod guard;
mod kernels;
mod lifetimes;
#[path = "../../../tests/device/litmus.rs"]
mod litmus;
#[path = "../../../tests/device/memory.rs"]
mod memory;
#[path = "../../../tests/device/nodes.rs"]
mod nodes;
mod opened;
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

use kernels::forgets_views;

use crate::suite::{Case, case};

pub(crate) fn all() -> Vec<Case> {
    let mut cases = vec![
        case!(lifetimes::an_open_device_is_one_instance_and_can_be_opened_again),
        case!(lifetimes::the_owner_of_a_stream_finds_its_device_current),
        case!(stalled::nothing_waits_for_a_stalled_stream),
        case!(steady::a_copy_up_in_a_steady_state),
        case!(kernels::a_view_is_filled_before_its_kernel_runs),
        case!(kernels::memory_is_not_reused_before_a_kernel_has_read_it),
        case!(kernels::a_copy_of_a_view_on_another_stream_reads_what_was_there),
        case!(kernels::a_slice_becomes_a_tensor),
        case!(kernels::memory_of_a_slice_is_freed_with_the_last_tensor),
        case!(contexts::no_context_stays_none),
        case!(contexts::another_context_stays_current),
        case!(streams::copies_run_on_the_streams_of_others),
        case!(cudarc::copies_run_on_the_streams_of_cudarc),
        case!(cudarc::a_stream_of_another_context_is_refused),
        case!(cudarc::the_default_stream_of_each_thread_is_refused),
        case!(cudarc::a_stream_of_cudarc_for_each_request_goes_with_it),
        case!(cudarc::a_capture_of_cudarcs_stream_gives_memory_back),
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
        case!(cudarc::memory_of_cudarc_goes_to_another_device, devices: 2),
        case!(cudarc::memory_of_cudarc_is_filled_from_another_device, devices: 2),
        case!(opened::plain_memory_of_the_program_is_read_by_kernels_of_a_peer, devices: 2),
        case!(opened::memory_of_a_pool_is_read_by_kernels_once_that_is_open, devices: 2),
        case!(opened::memory_of_which_some_is_open_is_read_by_no_kernel, devices: 2),
        case!(peers::tensors_go_from_device_to_device, devices: 2),
        case!(peers::a_source_that_is_still_being_filled_is_waited_for, devices: 2),
        case!(peers::parts_come_in_the_order_of_the_targets_stream, devices: 2),
        case!(peers::columns_of_memory_of_others_go_to_another_device, devices: 2),
        case!(peers::memory_of_others_is_filled_by_the_device_of_the_source, devices: 2),
        case!(captures::copies_do_not_break_the_capture_of_another_thread),
        case!(captures::growing_does_not_break_the_capture_of_another_thread),
        case!(graphs::a_graph_reads_what_was_copied_into_held_memory),
        case!(graphs::a_graph_and_copies_on_its_stream_are_submitted_before_any_runs),
        case!(graphs::one_slot_is_filled_while_the_graph_of_the_other_one_runs),
        case!(captures::a_copy_on_a_captured_stream_is_refused, may_leak: true),
        case!(recorded::a_graph_copies_what_is_there_when_it_is_launched),
        case!(recorded::a_graph_keeps_the_memory_of_its_copies),
        case!(recorded::a_launch_keeps_the_memory_of_its_copies),
        case!(recorded::what_a_graph_cannot_hold_is_refused),
    ];
    cases.extend(litmus::of_the_child().into_iter().chain(forgotten::of_the_child()));
    cases
}
