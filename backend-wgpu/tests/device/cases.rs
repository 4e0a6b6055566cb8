//! The cases, in the order in which they run.

mod buffers;
mod errors;
mod gather;
mod lost;
mod order;
mod own_device;
mod pools;
mod recycled;
mod scatter;
mod sizes;
mod stalls;
mod strided;
mod views;

use libtest_mimic::Failed;

/// What a case comes to.
pub(crate) type Outcome = Result<(), Failed>;

/// One case.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) body: fn() -> Outcome,
    /// It loses a device on purpose: what is in flight there is given up.
    pub(crate) may_leak: bool,
    /// It measures time on a machine that may be busy with something else: one of so many tries counts.
    pub(crate) tries: usize,
    /// What it needs that not every device has.
    pub(crate) lacks: fn() -> Option<String>,
}

/// A [`Case`] out of a function, named after it and its module.
macro_rules! case {
    ($module:ident::$body:ident $(, $field:ident: $value:expr)*) => {
        Case {
            $($field: $value,)*
            ..Case::new(concat!(stringify!($module), "::", stringify!($body)), $module::$body)
        }
    };
}

impl Case {
    fn new(name: &'static str, body: fn() -> Outcome) -> Self {
        Self { name, body, may_leak: false, tries: 1, lacks: || None }
    }
}

pub(crate) fn all() -> Vec<Case> {
    vec![
        case!(own_device::adapters_are_listed_in_an_order_that_stays),
        case!(own_device::copies_go_into_the_programs_own_device),
        case!(own_device::a_device_handed_in_twice_is_two),
        case!(own_device::several_threads_synchronize_at_once),
        case!(own_device::page_locked_tensors_are_refused),
        case!(order::a_shader_behind_a_copy_sees_what_it_wrote),
        case!(order::a_shader_behind_a_large_copy_sees_what_it_wrote),
        case!(order::a_shader_sees_what_the_host_wrote),
        case!(order::a_copy_behind_a_shader_sees_what_it_wrote),
        case!(order::memory_is_not_reused_before_a_shader_has_read_it),
        case!(order::a_position_covers_submissions_of_the_program),
        case!(buffers::what_the_host_writes_is_not_shown),
        case!(buffers::a_buffer_is_copied_into),
        case!(buffers::what_lies_behind_a_view_of_a_buffer_is_kept),
        case!(buffers::tensors_lie_in_memory_of_another_allocator),
        case!(buffers::a_lent_part_is_read_and_kept),
        case!(lost::destroyed_with_copies_in_flight, may_leak: true),
        case!(lost::destroyed_while_idle, may_leak: true),
        case!(lost::destroyed_where_the_host_writes, may_leak: true),
        case!(lost::destroyed_before_copies_without_staging, may_leak: true),
        case!(lost::no_view_of_what_was_never_filled, may_leak: true),
        case!(lost::results_outlive_a_destroyed_device, may_leak: true),
        case!(lost::mapped_results_of_a_destroyed_device_are_errors, may_leak: true),
        case!(errors::the_programs_handler_sees_its_own_errors_only),
        case!(errors::a_destroyed_buffer_is_an_error_and_the_next_copy_works),
        case!(errors::a_failed_submission_leaves_its_block_mapped),
        case!(errors::more_than_a_buffer_holds_is_too_large),
        case!(buffers::a_buffer_becomes_a_tensor),
        case!(buffers::wrong_buffers_are_refused),
        case!(views::a_leaf_is_bound_alone_where_it_is_aligned),
        case!(views::what_is_on_no_wgpu_device_has_no_view),
        case!(sizes::odd_views_up_down_and_between),
        case!(gather::odd_sizes_and_views_come_down_by_a_kernel),
        case!(gather::batches_of_several_threads_do_not_mix),
        case!(gather::few_bindings_are_no_kernel),
        case!(gather::buffers_without_storage_are_copied),
        case!(gather::views_of_buffers_larger_than_a_binding_come_down),
        case!(gather::the_same_tensors_are_bound_once),
        case!(gather::batches_of_one_shape_are_told_apart),
        case!(gather::what_is_bound_is_read_anew),
        case!(gather::what_is_bound_goes_with_its_tensors, lacks: gather::what_is_allocated_is_not_said),
        case!(gather::trim_gives_back_what_gathers),
        case!(scatter::columns_are_filled_by_few_launches),
        case!(scatter::large_ones_are_filled_in_rounds),
        case!(scatter::buffers_without_storage_are_filled),
        case!(scatter::columns_of_one_buffer_are_filled_out_of_others),
        case!(strided::devices_with_the_default_limits_have_the_kernel),
        case!(strided::two_bindings_are_no_kernel),
        case!(strided::large_ones_come_in_rounds),
        case!(strided::views_of_buffers_larger_than_a_binding),
        case!(strided::buffers_without_storage_are_gathered_and_cast),
        case!(strided::what_lies_between_tensors_is_left_alone),
        case!(strided::copies_of_several_threads_do_not_mix),
        case!(pools::a_copy_up_in_a_steady_state),
        case!(pools::trim_gives_all_staging_back),
        case!(pools::copies_in_flight_stay_within_the_budget),
        case!(recycled::the_next_copy_of_about_the_same_size_takes_the_same_memory),
        case!(recycled::many_of_a_mebibyte_take_the_same_memory_again),
        case!(recycled::a_buffer_that_the_program_holds_is_left_alone),
        case!(recycled::what_a_shader_still_reads_is_not_overwritten),
        case!(recycled::what_a_copy_still_reads_is_not_overwritten),
        case!(recycled::memory_of_before_does_not_show),
        case!(recycled::trim_gives_it_back),
        case!(recycled::small_buffers_go_at_once),
        case!(recycled::a_device_holds_twice_what_was_in_use_at_the_most),
        case!(recycled::nothing_is_kept_for_a_destroyed_device, may_leak: true),
        case!(stalls::starting_polling_and_dropping_do_not_wait_for_a_stalled_queue, tries: 5),
        case!(stalls::a_poll_of_the_program_that_waits_stalls_nobody, tries: 5),
        case!(stalls::submissions_of_the_program_are_not_stalled, tries: 5),
    ]
}
