//! Trials that claim nothing about a kernel: what they try is the daemon's disk, its clients, its exporters, or this harness.
//!
//! In the checks each of them runs on one kernel, and they take turns, so that their themes are on all. With full effort, or when they are asked
//! for by name, they run on all kernels as the others do.

use crate::effort;

/// By theme and name.
const TRIALS: &[(&str, &[&str])] = &[
    (
        "machine",
        &[
            "a_panic_is_noticed",
            "a_hang_is_noticed",
            "a_guest_that_cannot_start_says_why",
            "machines_do_not_disturb_each_other",
            "qemu_dies_with_its_owner",
        ],
    ),
    ("boot", &["disk_survives_a_power_cut"]),
    ("api", &["tls_wants_certificates_from_both_sides", "the_command_line_works_over_the_socket"]),
    ("languages", &["python_reads_what_kprobectl_reads", "python_speaks_tls"]),
    ("otlp", &["a_receiver_gets_what_clients_see"]),
    ("nats", &["what_is_published_is_what_was_recorded"]),
    ("recipes", &["rsyslog_writes_every_event", "syslog_ng_writes_every_event"]),
    (
        "declarations",
        &[
            "documents_make_probes_and_change_nothing_twice",
            "a_directory_says_what_there_is",
            "files_take_back_what_a_lost_database_left",
        ],
    ),
    ("rollout", &["a_roll_out_is_made_repeated_and_undone", "a_gate_that_fails_puts_everything_back"]),
    ("watch", &["what_becomes_of_probes_is_told"]),
    ("command_line", &["times_that_are_printed_are_read", "what_is_unknown_is_refused_with_what_is_known"]),
    ("container", &["the_image_works_as_the_daemonset_runs_it"]),
    ("survival", &["an_instance_has_one_daemon", "labels_survive_the_death_of_the_daemon"]),
    ("power_cuts", &["nothing_acknowledged_is_lost_with_the_power"]),
    (
        "leases",
        &[
            "what_is_held_goes_with_its_holder",
            "a_lease_ends_and_can_be_renewed",
            "leases_end_while_no_daemon_runs",
            "the_wall_clock_does_not_matter",
            "a_lease_ends_on_a_full_disk",
            "a_hold_does_not_survive_the_daemon",
        ],
    ),
    ("full_disk", &["a_full_tmpfs_loses_nothing", "a_full_ext4_loses_nothing"]),
    ("profiles", &["a_damaged_database_is_set_aside"]),
    ("exporters", &["lines_are_what_clients_see", "a_stuck_side_costs_nobody_else"]),
    ("prometheus", &["prometheus_scrapes_the_daemon"]),
    (
        "history",
        &[
            "the_past_is_shown_as_it_was",
            "a_client_comes_back_after_the_daemon_was_killed",
            "a_power_cut_leaves_what_is_older",
            "what_has_expired_is_told_with_its_number",
        ],
    ),
    // It boots both kernels itself.
    ("merge", &["two_kernels_are_in_one_order_while_one_is_killed"]),
    ("start_errors", &["a_failed_start_says_what_to_do"]),
    ("hostile", &["control_calls_go_before_streams", "idle_connections_keep_nobody_out"]),
];

/// Whether a trial runs on the kernel of this number, of so many.
pub(crate) fn has(theme: &str, name: &str, (kernel, kernels): (usize, usize), is_asked_for: bool) -> bool {
    let mut all = TRIALS.iter().flat_map(|(theme, names)| names.iter().map(move |name| (*theme, *name)));
    let turn = all.position(|trial| trial == (theme, name));
    is_asked_for || turn.is_none_or(|turn| turn % kernels == kernel || effort::pick(false, true))
}

/// Those of which there is no trial (any more).
pub(crate) fn unknown<'a>(is_trial: impl Fn(&str, &str) -> bool + 'a) -> impl Iterator<Item = String> + 'a {
    let all = TRIALS.iter().flat_map(|(theme, names)| names.iter().map(move |name| (*theme, *name)));
    all.filter(move |(theme, name)| !is_trial(theme, name)).map(|(theme, name)| format!("{theme}::{name}"))
}
