// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All scenarios, by the trap that each is about. A table, to be read by searching.

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Context, Result};
use erb_sim_kernel::Library;
use erb_sim_kernel::compile::Flavour;

use super::{absent, cases, closed, hand, hashes, reads, reports, seldom, sharp, through};
use crate::mutate::{self, Change, DaemonMistake, source};
use crate::plan::Outcome;
use crate::violation::Violation;

/// A trap of docs/internals/traps.md, and the scenario that goes into it.
#[derive(Clone, Copy)]
pub struct Case {
    /// Name, as given on the command line.
    pub name: &'static str,
    /// Its names there: T-1, C-1; E-1 stands in docs/internals/edges.md.
    pub trap: &'static str,
    /// What must hold; where there is no scenario, why not.
    pub about: &'static str,
    /// A deliberate mistake that this scenario sees; empty: none was tried.
    pub mistake: &'static str,
    play: Option<fn()>,
}

impl Case {
    /// Whether there is a scenario.
    #[must_use]
    pub const fn is_shown(&self) -> bool {
        self.play.is_some()
    }

    /// Plays it.
    ///
    /// # Errors
    /// What it saw, with the story.
    pub fn play(&self) -> Result<(), Violation> {
        let Some(play) = self.play else {
            return Ok(());
        };
        catch_unwind(AssertUnwindSafe(play)).map_err(|panic| {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Violation::new("scenario", 0, text.unwrap_or_default())
        })
    }

    /// Plays it with its mistake.
    ///
    /// # Errors
    /// If the mistake does not exist or cannot be built.
    pub fn play_wrong(&self) -> Result<Result<(), Violation>> {
        let mutation = mutate::all()
            .find(|mutation| mutation.name == self.mistake)
            .with_context(|| format!("no mistake {:?}", self.mistake))?;
        let (library, mistake) = match mutation.change {
            Change::Daemon(mistake) => (None, Some(mistake)),
            Change::Source(edits) => (Some(source::build(self.name, edits, Flavour::Hasty)?), None),
        };
        Ok(self.play_with(library, mistake))
    }

    /// Plays it with a mutant of the data path, a mistake of the daemon, or neither; what it says
    /// when it fails is in the result alone.
    ///
    /// # Errors
    /// What it saw, with the story.
    pub fn play_with(
        &self,
        library: Option<Library>,
        mistake: Option<DaemonMistake>,
    ) -> Result<(), Violation> {
        hand::with(library, mistake, || self.play())
    }

    /// Plays it as it is; what it saw when it fails, and what its worlds were.
    pub fn play_counted(&self) -> (Result<(), Violation>, Vec<Outcome>) {
        hand::outcomes(|| self.play_with(None, None))
    }
}

/// The scenario of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Case> {
    ALL.iter().find(|case| case.name == name)
}

/// Scenarios with a mistake that they see.
pub fn mistakes() -> impl Iterator<Item = &'static Case> {
    ALL.iter().filter(|case| !case.mistake.is_empty())
}

macro_rules! cases {
    ($($name:literal, $trap:literal, $about:literal, $play:expr, $mistake:literal;)*) => {
        /// All of them, in the order of the lists.
        pub const ALL: &[Case] = &[$(Case {
            name: $name,
            trap: $trap,
            about: $about,
            mistake: $mistake,
            play: $play,
        }),*];
    };
}

cases! {
    "tcp-01-slow-reply-then-fast", "T-1", "after a slow reply the next request is fast and the kernel gets its acknowledgement", Some(cases::edge::slow_reply_then_fast), "ack-swallowed";
    "tcp-02-old-bytes-below-the-edge", "T-2", "a copy of an old reply that leaves after an edit takes no new byte's place", Some(cases::edge::old_bytes_below_the_edge), "edge-drop-missing";
    "tcp-03-ack-floor", "T-3", "an acknowledgement below the edge goes up as the edge, the window's right edge stays", Some(cases::edge::acknowledgement_below_the_edge), "floor-missing";
    "tcp-03-floored-window", "T-3", "a floored acknowledgement takes no window away", Some(cases::edge::window_of_a_floored_ack), "";
    "tcp-04-hole-filled-fast", "T-4", "what fills a hole is not consumed while bytes behind it lie in the kernel", Some(cases::edge::hole_filled_before_kept_bytes), "ahead-consumed";
    "tcp-04-earlier-bytes-on-their-way", "T-4", "nothing is consumed while earlier bytes are between XDP and TCP", Some(cases::edge::earlier_bytes_on_their_way_up), "kernel-behind";
    "tcp-05-keepalive", "T-5", "a client's keepalive probe is answered", Some(cases::acks::clients_keepalive), "probe-dropped";
    "tcp-05-window-update", "T-5", "a window update reaches a kernel that waits for it", Some(cases::acks::window_update), "pure-acks-dropped";
    "tcp-05-duplicate-acks", "T-5", "three duplicate ACKs are a fast retransmission of the kernel", Some(cases::acks::duplicate_acks_without_sack), "pure-acks-dropped";
    "tcp-05-says-nothing", "T-5", "only an ACK that says nothing is dropped, and one a second is not", Some(cases::acks::dropped_only_when_they_say_nothing), "pure-acks-dropped";
    "tcp-06-stray-syn-and-rst", "T-6", "packets that the kernel does not believe change nothing", Some(cases::lives::stray_syn_and_rst), "any-rst-ends";
    "tcp-06-after-both-fins", "T-6", "after both FINs the kernel still speaks in the client's numbers", Some(cases::lives::both_fins_and_a_lost_ack), "";
    "tcp-06-syn-flood", "T-6", "SYNs and blind third packets make no entries", Some(cases::lives::syn_flood), "";
    "tcp-07-third-packet-carries-data", "T-7", "a connection that begins in a request socket is known from its first byte", Some(cases::lives::first_payload_is_the_third_packet), "";
    "tcp-07-two-cpus", "T-7, T-8", "a handshake that ends on one CPU while another has its first payload", Some(cases::order::handshake_ends_on_two_cpus), "";
    "tcp-15-ack-too-old", "T-15", "data that acknowledges less than was acknowledged by more than any window reaches nobody", Some(cases::order::ack_older_than_any_window), "ack-too-old-ignored";
    "tcp-15-ack-too-old-by-little", "T-15", "data that acknowledges less than the first byte of the replies reaches nobody, also where answers were inserted; with an old acknowledgement it does", Some(cases::order::ack_too_old_by_little), "ack-before-first-spliced";
    "tcp-15-ack-before-the-first-byte", "T-15", "payload that the kernel may refuse or take does not go up", Some(cases::order::payload_that_may_be_refused), "request-unproved";
    "tcp-15-ack-of-unsent", "T-15", "payload that acknowledges what Redis has written and TCP has not sent does not go up", Some(cases::order::ack_of_what_was_not_sent), "ack-of-unsent";
    "tcp-07-listener", "T-7", "a listener is no connection", Some(cases::lives::listener_is_no_connection), "";
    "tcp-07-time-wait", "T-7", "TIME_WAIT answers old packets itself, in the client's numbers", Some(cases::lives::time_wait_answers_old_packets), "";
    "tcp-08-kernel-speaks-meanwhile", "T-8", "the kernel sends between the look and the commit", Some(cases::order::kernel_speaks_during_the_commit), "";
    "tcp-09-two-cpus", "T-9", "SET and GET of one connection on two CPUs keep their order", Some(cases::order::two_cpus_one_connection), "";
    "tcp-09-same-packet-on-two-cpus", "T-9", "a packet and its copies on several CPUs count once", Some(cases::order::same_packet_on_two_cpus), "scan-twice";
    "tcp-10-lost-behind-xdp", "T-10", "a request lost behind XDP reaches Redis when it is repeated, and counts once", Some(cases::order::slow_request_lost_behind_xdp), "";
    "tcp-10-replay-acknowledges", "T-10", "a replay acknowledges only what the kernel has", Some(cases::acks::replay_acknowledges_what_the_kernel_has), "replay-acknowledges-more";
    "tcp-10-acknowledged-duplicate", "T-10", "a duplicate of an acknowledged answer gets a bare ACK", Some(cases::order::duplicate_of_an_acknowledged_answer), "";
    "tcp-10-duplicate-joined", "T-10", "consumed bytes and new ones in one segment", Some(cases::order::duplicate_joined_with_new_bytes), "";
    "tcp-11-idle-timer", "T-11", "Redis's idle timer sees a client that is always answered fast", Some(cases::counting::idle_timer_of_redis), "";
    "tcp-12-path-mtu", "T-12", "path MTU errors reach the kernel in its own numbers, fast bytes are cut anew", Some(cases::wire::small_path_mtu), "icmp-untranslated";
    "tcp-13-timestamps", "T-13", "TSval never goes back, the kernel's packets echo the newest stamp", Some(cases::wire::timestamps_go_on), "old-stamp-echoed";
    "tcp-14-checksum", "T-14", "a wrong checksum is not answered, on veth neither", Some(cases::wire::wrong_checksum), "checksum-unchecked";
    "tcp-15-acceptance", "T-15", "what TCP would not accept is not answered and counts for nothing", Some(cases::wire::not_acceptable_to_tcp), "";
    "tcp-15-beyond-the-window", "T-15", "data beyond the advertised window", Some(cases::wire::more_than_the_server_offered), "";
    "tcp-16-syn-ack-window", "T-16", "a fast answer offers what the kernel offers, not the SYN-ACK's field", Some(cases::edge::syn_ack_window), "window-unscaled";
    "tcp-17-merged", "T-17", "merged packets are translated, never answered", Some(cases::wire::merged_packets), "";
    "tier-no-room", "tiers", "a reply that XDP has no room for comes from the TC tier, the next one from XDP", Some(cases::edge::no_room_at_xdp), "no-room-forgotten";
    "lo-answers-and-marks", "loopback", "clients on the server's own machine are answered, and their writes are seen", Some(cases::loopback::answers_and_marks), "";
    "lo-feed-left-alone", "loopback", "the daemon's own connection over a boosted device is Redis's alone", Some(cases::loopback::the_feed_is_left_alone), "feed-answered";
    "lo-longer-than-64-kb", "loopback", "a merged packet whose IP header says length 0 is as long as its frame", Some(cases::loopback::packets_longer_than_64_kb), "length-unsaid";
    "tcp-18-one-replay-per-hole", "T-18", "duplicate ACKs provoke one replay per hole and round trip", Some(cases::acks::one_replay_per_hole), "replay-unpaced";
    "tcp-18-dsack", "T-18", "D-SACK provokes no replay, a hole exactly its bytes", Some(cases::acks::no_replay_for_dsack), "replay-for-dsack";
    "tcp-19-sack-at-the-edge", "T-19", "no SACK block goes up while the acknowledgement is below the edge", Some(cases::acks::sack_across_the_edge), "";
    "tcp-19-sack-above", "T-19", "SACK blocks above the edge go up in the kernel's numbers", Some(cases::acks::sack_above_the_edge), "sack-delta";
    "tcp-20-timer", "T-20", "the timer repeats from the state of the moment, with back-off", Some(cases::acks::answers_repeated_by_the_timer), "rexmit-silent";
    "tcp-21-held", "T-21", "not shown: nothing is held in mode read", None, "";
    "tcp-22-no-reply", "T-22", "empty requests get no reply and bar nothing", Some(cases::counting::requests_without_reply), "";
    "tcp-22-no-request", "T-22", "what comes without a request is not taken for a reply", Some(cases::counting::replies_without_request), "";
    "tcp-22-lines", "T-22", "an error of several lines is one reply, whatever is asked behind it", Some(cases::counting::lines_that_look_like_replies), "lines-counted";
    "tcp-22-lines-later", "T-22", "and so it is for what is asked later, until all of it is with the client", Some(cases::counting::lines_and_what_is_asked_later), "lines-counted-later";
    "tcp-22-one-line", "T-22", "where errors are one line nothing of that is asked", Some(cases::counting::one_line), "one-line-unbelieved";
    "tcp-22-refused-client", "T-22", "a client that Redis refuses is not answered", Some(cases::counting::refused_by_redis), "";
    "tcp-22-gap-at-egress", "T-22", "a local loss before egress bars the connection", Some(cases::counting::gap_at_egress), "";
    "tcp-23-never-back", "T-23", "after CLIENT REPLY, TRACKING and MONITOR there is no way back", Some(cases::admit::never_back), "";
    "tcp-23-transactions", "T-23", "after EXEC, DISCARD and RESET a connection is fast again, inside MULTI never", Some(cases::admit::transactions_and_back), "bypass-answered";
    "tcp-23-subscriptions", "T-23", "after the last UNSUBSCRIBE counting begins anew", Some(cases::admit::subscriptions_and_back), "";
    "tcp-23-moved-on", "T-23", "who has moved on since the list is not admitted by it", Some(cases::admit::moves_on_before_it_is_admitted), "epoch-uncompared";
    "tcp-23-resp", "T-23", "the RESP version is proved, never guessed", Some(cases::admit::resp_versions), "resp-guessed";
    "tcp-23-blocked", "T-23", "who waits in BLPOP is not admitted before it was served", Some(cases::rights::blocked_is_not_admitted), "";
    "tcp-23-push-around-unsubscribe", "T-23", "a message just before or behind UNSUBSCRIBE is no answer", Some(cases::rights::push_around_unsubscribe), "";
    "coh-37-auth-in-flight", "C-37", "what follows AUTH is the new user's", Some(cases::rights::auth_in_flight), "auth-ignored";
    "coh-37-rights-behind-the-list", "C-37", "rights are lost between CLIENT LIST and admission", Some(cases::rights::rights_behind_the_list), "rights-ignored";
    "coh-37-refused-again", "C-37", "who lost rights and goes on asking keeps nobody from being answered", Some(cases::rights::refused_again_and_again), "refusals-shut";
    "coh-37-databases", "C-37", "each database has its own values", Some(cases::admit::databases_apart), "db-uncompared";
    "coh-37-select", "C-37", "SELECT behind the photograph", Some(cases::admit::select_behind_the_photograph), "";
    "coh-37-watch", "C-37", "CLIENT LIST hides WATCH, the stream shows it", Some(cases::admit::watch_bars), "watch-forgotten";
    "coh-37-older", "C-37", "a connection older than ERB is answered after it was", Some(cases::admit::older_connections_become_fast), "";
    "coh-37-older-busy", "C-37", "a connection older than ERB that is at work all the time is taken up", Some(cases::admit::older_and_busy), "quiet-when-acknowledged";
    "coh-37-older-never", "E-10", "a busy connection that is never admitted leaves others the fast path", Some(cases::admit::older_busy_and_never_admitted), "gate-left-to-tick";
    "coh-37-older-inside", "C-37", "CLIENT LIST hides the begin of a command", Some(cases::admit::older_inside_a_command), "trial-unproved";
    "admit-older-waits", "A8", "a worker older than ERB that always waits is taken in, and closes nothing", Some(cases::admit::older_and_waiting), "owed-forgotten";
    "coh-37-older-half", "C-37", "the rest of a command that CLIENT LIST hid is no trial for ever", Some(cases::admit::older_with_half_a_command), "trial-for-ever";
    "coh-37-behind-a-trial", "C-37", "the proof of what was sent on trial releases nothing that was sent later", Some(cases::admit::marks_behind_a_trial), "trial-proof-of-all";
    "coh-37-older-silent", "C-37", "CLIENT LIST hides REPLY OFF and SKIP", Some(cases::admit::older_and_silent), "";
    "tcp-24-large-packets", "T-24", "segmentation offload: one header for many segments", Some(cases::wire::large_reply_in_one_packet), "";
    "tcp-25-other-device", "T-25", "a connection whose replies leave by another device is never answered", Some(cases::wire::replies_by_another_device), "any-device";
    "dev-replies-move", "E-3", "replies that begin to leave by another device are translated there", Some(cases::devices::replies_move), "untranslated-elsewhere";
    "dev-requests-move", "E-3", "requests that begin to come by another device are translated there, and not answered", Some(cases::devices::requests_move), "answered-elsewhere";
    "dev-all-moves", "E-3", "a connection that moves to another boosted device is answered there", Some(cases::devices::all_moves), "";
    "dev-one-above-another", "E-3", "a packet that passes two devices is translated once", Some(cases::devices::one_above_another), "translated-twice";
    "dev-begins-elsewhere", "E-3", "a connection that begins on a device that is not boosted is left alone", Some(cases::devices::begins_elsewhere), "tracked-elsewhere";
    "tcp-26-reset", "T-26", "the reset for a vanished socket has the number that the client believes", Some(cases::lives::reset_of_a_vanished_socket), "";
    "tcp-27-ecn", "T-27", "congestion marks go up, fast answers are Not-ECT", Some(cases::wire::congestion_marks), "";
    "tcp-27-accecn", "T-27", "not shown: the model's stacks do not negotiate AccECN", None, "";
    "tcp-28-vlan", "T-28", "fast answers carry the tag", Some(cases::wire::tagged_frames), "";
    "tcp-28-vlan-offload", "T-28", "not shown: tag offload is a driver's feature; e2e looks at ethtool's part", None, "";
    "tcp-29-idle-window", "T-29", "not shown: the cost of an idle congestion window is stated, not prevented", None, "";
    "tcp-30-time-wait-reuse", "T-30", "without timestamps a SYN waits for the end of a spliced TIME_WAIT", Some(cases::lives::time_wait_without_timestamps), "time-wait-unguarded";
    "tcp-31-odd", "T-31", "MPTCP, unknown options and urgent data go up", Some(cases::wire::unknown_options_and_urgent_data), "";
    "tcp-fin-after-fast-bytes", "T-6, T-10", "fast bytes that were lost are repeated after the server's FIN", Some(cases::lives::fast_bytes_outlive_the_servers_fin), "silent-after-fin";
    "sock-memory-is-anothers", "sock_known", "the socket is gone and its memory another's between two packets", Some(cases::lives::memory_of_a_socket_is_anothers), "";
    "sock-same-addresses", "sock_known", "the address pair is another socket's while the entry stands", Some(cases::lives::same_address_another_socket), "cookie-unchecked";
    "sock-same-memory", "sock_known", "another socket of the address pair lies where the former one lay, and scales its window otherwise", Some(cases::lives::another_socket_where_the_former_one_lay), "former-kept";
    "sock-closed-before-commit", "sock_known", "Redis closes between the look and the commit", Some(cases::lives::socket_closed_between_look_and_commit), "";
    "coh-05-fill-and-write", "C-5", "a fill that a write overtakes is not inserted", Some(cases::fills::fill_races_a_write), "fill-version";
    "coh-14-fill-and-unseen-write", "C-14", "fill and feed are one stream: a push never comes before the fill that it follows", Some(cases::fills::fill_races_an_unseen_write), "";
    "coh-11-expired", "C-11", "an entry is not answered from shortly before its expiry", Some(cases::fills::expired_entry), "expiry-unchecked";
    "coh-16-stalled-daemon", "C-16", "a daemon that stalls prolongs no key's life", Some(cases::fills::expiry_through_a_daemon_that_stalls), "";
    "coh-16-clock-step", "C-16", "a step of the wall clock empties the cache", Some(cases::fills::wall_clock_steps), "clock-unwatched";
    "coh-15-databases", "C-15", "a key of another database is another key", Some(cases::fills::other_databases), "";
    "coh-15-swapdb", "C-15", "SWAPDB pushes nothing and is noticed", Some(cases::fills::swapdb_pushes_nothing), "";
    "coh-15-replica", "C-15", "what a replica's master writes is an unseen change like any other", Some(cases::replica::follows_its_master), "";
    "coh-15-resync", "C-15", "a full resynchronisation empties the cache, and nothing is answered while Redis loads", Some(cases::replica::loaded_anew), "";
    "coh-22-master-away", "C-22", "a replica that shows no stale data refuses reads without its master, so does ERB", Some(cases::replica::master_is_away), "lease-without-pong";
    "coh-15-every-change", "C-15", "whatever changes a key takes it from the cache", Some(cases::fills::every_change_is_pushed), "invalidations-dropped";
    "coh-43-whole-set", "C-43", "a mark counts for its whole set and goes with the reply", Some(cases::fills::mark_of_another_key_of_the_set), "mark-ignored";
    "coh-43-no-room", "C-43", "marks without room take the fence", Some(cases::fills::more_marks_than_room), "";
    "coh-03-unknown-keys", "C-3, C-9", "a command with unknown keys closes the fast path until it is answered", Some(cases::fence::unknown_keys_close_everything), "fence-not-taken";
    "fence-half-script", "S3", "half a command closes nothing for others", Some(cases::settle::half_a_script), "";
    "fence-unread-silent", "E-39", "behind what is not read, a command that waits closes nothing", Some(cases::settle::unread_and_silent), "";
    "fence-half-body", "S3", "a command closes the fence with its last byte, however long its last argument is", Some(cases::settle::half_a_body), "late-early";
    "fence-slow-reader", "C10", "a reply that is not read closes nothing for others", Some(cases::settle::slow_reader), "reply-whole";
    "fence-unread-before", "C10", "what runs behind a reply that is not read closes nothing once a list shows that it has run", Some(cases::settle::behind_a_reply_that_is_not_read), "held-for-ever";
    "fence-unread-blocked", "C10", "what cannot run yet holds what it takes, whether or not replies are read", Some(cases::settle::behind_a_reply_and_blocked), "";
    "fence-stranger", "M5", "what Redis refuses, as no password was shown, does not empty the cache", Some(cases::settle::stranger), "stranger-empties";
    "fence-let-in", "M5", "an error proves nothing of who was let in", Some(cases::settle::stranger), "errors-believed";
    "fence-let-in-before", "M5", "whom Redis let in before there was a password is not taken for refused", Some(cases::settle::let_in_before), "refusals-assumed";
    "fence-cache-kept", "C10", "a script that is answered closes the fast path for a round trip and costs nobody the cache", Some(cases::settle::the_cache_is_kept), "script-empties";
    "fence-reports-handled", "C10", "the fast path opens when what a script wrote has been reported, not before", Some(cases::settle::reports_are_handled_first), "settled-unread";
    "fence-unreported-swap", "C10", "SWAPDB inside of a script is noticed before the fast path opens", Some(cases::settle::swap_in_a_script), "";
    "fence-many-scripts", "C10", "scripts do not take the fast path from the others", Some(cases::settle::scripts_without_end), "script-empties";
    "fence-new-daemon", "C10", "shares that wait when the daemon dies are settled by the next", Some(cases::settle::daemon_dies), "";
    "listen-older-subscriber", "A7", "an older connection that only listens and pings closes nothing", Some(cases::settle::older_that_listens), "listener-unheard";
    "listen-no-more", "A7", "an older listener that says anything else is fenced like any other", Some(cases::settle::listener_that_writes), "listener-trusted";
    "fence-before-commit", "U2", "what is older than ERB, or on trial, is committed behind its fence", Some(cases::foreseen::older_than_erb), "share-behind-commit";
    "fence-before-unreadable", "U2", "what cannot be read is committed behind its fence", Some(cases::foreseen::unreadable), "share-behind-commit";
    "fence-before-overflow", "U2", "more marks than there is room for are committed behind the fence", Some(cases::foreseen::more_than_the_ring_holds), "share-behind-commit";
    "fence-before-last-bytes", "U2", "the last bytes of a command, too, when the ring is full", Some(cases::foreseen::last_bytes_and_a_full_ring), "share-behind-commit";
    "gate-before-commit", "U2", "the gate is shut before the command that shuts it is committed", Some(cases::foreseen::gate_before_the_commit), "gate-behind-commit";
    "fence-in-vain", "U2", "a share that was foreseen in vain is given back", Some(cases::foreseen::share_in_vain), "share-kept-in-vain";
    "fence-unforeseen", "U2", "a share that was not foreseen is a race, and the packet is dropped", Some(cases::foreseen::share_unforeseen), "share-unforeseen";
    "write-given-back", "U1", "a write whose entry moves while the express lane takes its mark holds nothing", Some(cases::foreseen::write_given_back), "lane-mark-kept";
    "long-write-given-back", "U1", "neither does a write that goes the general way", Some(cases::foreseen::long_write_given_back), "mark-not-given-back";
    "gate-unforeseen", "U2", "a gate that was not foreseen is a race, and the packet is dropped", Some(cases::foreseen::gate_unforeseen), "gate-unforeseen";
    "coh-03-many-keys", "C-3, C-9", "a write of several keys marks each of them and closes nothing else", Some(cases::keys::many_keys), "key-step";
    "coh-03-last-key", "C-3, C-9", "a range of keys goes to the last one", Some(cases::keys::many_keys), "last-key-forgotten";
    "coh-03-other-database", "C-3, C-15", "MOVE and COPY to another database mark the key there", Some(cases::keys::other_database), "";
    "coh-03-split-keys", "C-3, C-9", "keys are found wherever the stream is cut", Some(cases::keys::cut_anywhere), "key-across-packets";
    "coh-03-too-many-keys", "C-3, C-9", "more keys than are marked close the fast path", Some(cases::keys::too_many), "";
    "coh-03-counted-keys", "C-3, C-9", "the number of keys is read from its argument", Some(cases::keys::counted), "keynum-misread";
    "coh-43-half-write", "S3", "half a write marks nothing, and marks its keys with its last byte", Some(cases::keys::half_a_write), "marks-early";
    "coh-43-half-command", "C-43", "a command whose keys have no room to wait closes the fence when it is whole", Some(cases::keys::half_a_command), "overflow-half";
    "coh-03-own-table", "C-3", "Redis's own command table is loaded", Some(cases::names::own_table), "table-not-loaded";
    "coh-03-renamed-fast", "C-3", "a fast command whose name another one bears is Redis's", Some(cases::names::fast_command), "fast-names-unchecked";
    "coh-03-renamed-write", "C-3, C-9", "a write that bears the name of a read closes the fast path", Some(cases::names::write), "table-not-loaded";
    "coh-03-renamed-state", "C-3", "a name that nobody knows may be that of a command with a state", Some(cases::names::state), "unknown-is-no-state";
    "coh-03-renamed-needed", "C-3", "without the commands that the daemon needs nothing is answered", Some(cases::names::needed), "";
    "coh-07-bypass-writes", "C-7", "BYPASS takes away answers only: its writes are marked", Some(cases::fence::writes_of_bypassed_connections), "";
    "coh-07-older-than-erb", "C-7", "payload of connections older than ERB is fenced until proved", Some(cases::fence::older_than_erb), "never-released";
    "port-another-server", "E-2", "clients of another server on the port are answered by it, and nobody notices them", Some(cases::port::another_server), "foreign-answered";
    "port-another-server-comes", "E-2", "another server may come at any time", Some(cases::port::another_server_comes), "";
    "port-forged-payload", "E-9", "payload without connection takes the fast path from nobody", Some(cases::port::forged_payload), "listen-closes";
    "port-syn-cookie", "E-9, C-7", "what ends a handshake by SYN cookie fences until proved", Some(cases::port::write_by_syn_cookie), "cookie-ack-ignored";
    "port-look-up-in-between", "E-9", "a look-up between a request and its connection finds neither", Some(cases::port::look_up_in_between), "looked-up-once";
    "coh-07-full-table", "C-7", "what a connection without room writes shows by Redis's push", Some(cases::room::writer_without_room), "crowd-closes";
    "edge-14-share", "C-7", "one address takes the table from nobody", Some(cases::room::share_of_an_address), "share-unbounded";
    "edge-14-under-way", "C-7", "what found no room is not new while bytes of it are under way", Some(cases::room::room_while_payload_is_under_way), "unseen-believed";
    "edge-14-taken-up", "C-7", "what found no room is taken up when there is room, and closes nothing before", Some(cases::room::taken_up_when_there_is_room), "crowd-taken-up";
    "edge-14-quit", "C-7", "connections that Redis has closed do not fill the table", Some(cases::room::many_that_quit), "time-wait-kept";
    "edge-14-large-table", "C-7", "a large table delays neither proof nor what is sent again", Some(cases::room::large_table), "held-unlisted";
    "edge-14-silent", "C-7", "who has said nothing beside a crowd is new, and counted", Some(cases::room::silent_beside_a_crowd), "count-leaks";
    "coh-07-unparseable", "C-7", "a stream that cannot be parsed may have written anything", Some(cases::fence::streams_that_cannot_be_parsed), "";
    "coh-08-queued", "C-8", "QUEUED releases nothing that EXEC needs", Some(cases::fence::queued_is_no_reply), "";
    "coh-17-dead-daemon", "C-17", "without a daemon nothing is answered from the cache", Some(cases::lease::dead_daemon), "lease-ignored";
    "coh-17-stopped-daemon", "C-17, C-42", "a daemon that lives but does not read renews nothing", Some(cases::lease::stopped_daemon), "lease-ignored";
    "coh-17-silent-redis", "C-17", "no PONG, no lease", Some(cases::lease::silent_redis), "lease-without-pong";
    "coh-17-pong-behind-pushes", "C-17", "only a PONG behind all pushes renews the lease", Some(cases::lease::pong_behind_the_pushes), "";
    "coh-18-adopted", "C-18", "a new daemon keeps connections and drops the cache", Some(cases::lease::adopted_by_a_new_daemon), "never-cleared";
    "coh-18-feed-killed", "C-18", "a new feed drops the cache", Some(cases::lease::feed_is_killed), "never-cleared";
    "coh-20-blocking", "C-20", "a blocking command ends what it closed", Some(cases::fence::blocked_for_long), "";
    "coh-20-reply-off", "C-20, C-21", "where no reply comes, proof releases", Some(cases::fence::no_reply_will_come), "never-released";
    "coh-21-dead-connection", "C-21", "marks of a dead connection stand until its commands cannot run any more", Some(cases::fence::marks_of_a_connection_that_dies), "never-released";
    "coh-21-copies", "C-21", "copies of a packet take no marks", Some(cases::fence::copies_take_no_mark), "";
    "coh-26-redis-restarts", "C-26", "Redis comes back with less: nothing of before is answered", Some(cases::lease::redis_comes_back_with_less), "never-cleared";
    "coh-30-two-feeds", "C-30", "a new daemon ends the feed of the old one", Some(cases::lease::two_daemons), "";
    "coh-34-unseen-writer", "C-34, C-35", "changes that no packet shows are late by the lease at most", Some(cases::lease::unseen_writer_is_late_by_the_lease), "";
    "coh-38-first-command", "C-38", "the first command of a connection is Redis's own", Some(cases::fence::first_command_is_redis_own), "";
    "coh-39-gate", "C-22, C-39, C-40", "what changes Redis's state shuts the gate until it was read again", Some(cases::fence::commands_that_move_the_gate), "gate-ignored";
    "coh-40-monitor", "C-40", "a MONITOR sees every read", Some(cases::fence::monitor_sees_everything), "";
    "coh-40-monitor-untracked", "C-40", "a MONITOR that found no room is noticed", Some(cases::room::monitor_without_room), "";
    "coh-40-monitor-unread", "C-40", "the packet that cannot be read may be a MONITOR", Some(cases::fence::monitor_that_cannot_be_read), "unread-opens";
    "coh-41-policy", "C-41", "where Redis evicts by use, keys that ERB answers are not the first to go", Some(cases::fence::policies_that_count_reads), "use-unnoticed";
    "coh-17-refused-user", "C-17", "a feed whose password Redis does not take any more answers nothing, and comes back with the right one", Some(cases::lease::password_changed), "lease-without-pong";
    "ops-replaced", "operability", "programs are replaced in mid-flight: nothing is lost, repeated or stale", Some(cases::lease::programs_replaced), "";
    "ops-replaced-unawares", "operability", "what changes while programs are replaced and no daemon listens is noticed", Some(cases::rights::replaced_unawares), "rights-taken-over";
    "coh-lease-rests", "C-17", "a lease that rests answers nothing and comes back", Some(cases::lease::rest_and_wake), "";
    "sharp-replay-full", "T2", "what is unacknowledged fits the replay buffer", Some(cases::replay::is_full), "replay-full";
    "sharp-replay-wraps", "T2", "what is sent again is what was sent, also across the end of the replay buffer", Some(cases::replay::wraps), "wrap-carry";
    "sharp-set-changed", "C7", "an entry that is replaced while it is read is not answered", Some(sharp::entry_replaced_while_it_is_read), "set-unlocked";
    "sharp-older-out-of-order", "C-7", "a connection of which TCP holds bytes that no entry counted is older than ERB", Some(sharp::older_out_of_order), "queued-ignored";
    "sharp-older-with-state", "C-7", "a connection older than ERB may be in another database", Some(sharp::older_with_a_state), "old-taken-for-new";
    "sharp-older-writes", "C-7", "what a connection older than ERB writes is fenced before the daemon hears of it", Some(sharp::older_that_writes), "old-not-fenced";
    "sharp-made-once", "T1", "two CPUs that find no entry make one", Some(sharp::both_find_no_entry), "made-twice";
    "sharp-fill-across-fence", "C2", "a fill that a script overtakes is not inserted", Some(sharp::fill_across_a_fence), "fill-global-version";
    "sharp-fill-across-script", "C2, C10", "a fill that a script overtakes is not inserted", Some(sharp::fill_across_a_script), "";
    "sharp-fill-across-write", "C2", "a fill that a write overtakes is not inserted", Some(sharp::fill_across_a_write), "fill-version";
    "sharp-fill-below-write", "C1", "no fill begins while a write is on its way", Some(sharp::fill_below_a_write), "fill-under-mark";
    "sharp-late-pong", "C-17", "the lease counts from when PING was written", Some(sharp::late_pong), "lease-from-pong";
    "sharp-last-push", "C-4, C-15", "an invalidation is handled when it comes", Some(sharp::last_push), "invalidations-late";
    "sharp-gate-state", "C-39", "the gate opens when Redis's state was read again, not when the command was executed", Some(sharp::gate_before_the_state), "gate-unread";
    "tcp-15-unread", "E-40", "Redis is not led to send beyond the client's window", Some(cases::acks::unread_and_small), "window-stale";
    "sharp-too-large", "T-15", "no answer is beyond the client's window or longer than its segments", Some(sharp::larger_than_the_client_takes), "mss-ignored";
    "sharp-closing-server", "sock_known", "a remembered socket that is closing is looked up again", Some(sharp::asked_again_while_the_server_closes), "known-without-state";
    "sharp-server-window", "T-15", "nothing is consumed that the kernel has no room for", Some(sharp::server_window_is_full), "server-window-ignored";
    "sharp-unread-write", "C-20, C-21", "a write that gets no reply holds the fence until Redis has executed it", Some(sharp::read_but_not_executed), "released-without-proof";
    "sharp-bare-by-chance", "T-14", "a right sum that equals the bare one is updated like any other", Some(sharp::sum_is_the_bare_one), "bare-by-chance";
    "reads-answers", "F1, F3", "the fast reads answer what Redis answers, and their odd forms are Redis's", Some(reads::answers_of_reads), "miss-in-mget";
    "reads-one-packet", "F1", "fast commands of all kinds are answered in order", Some(reads::reads_in_one_packet), "";
    "reads-time-left", "F1", "TTL and PTTL are exact to the millisecond", Some(reads::time_that_is_left), "ttl-not-rounded";
    "reads-misses", "fills", "the keys of an MGET are missed one by one", Some(reads::misses_of_many), "";
    "reads-two-moments", "F2", "the keys of one command are of one moment", Some(reads::keys_of_two_moments), "two-moments";
    "reads-switched-off", "fast_off", "a command that this Redis has not is not answered", Some(reads::switched_off), "off-ignored";
    "hash-answers", "V2", "a hash that is cached whole answers for every field; other types are Redis's", Some(hashes::answers), "field-by-length";
    "hash-changes", "C-3", "whatever changes a hash ends what is cached of it", Some(hashes::changes), "type-not-kept";
    "hash-fill-meets-write", "C2", "a fill that a write of the hash overtakes is not inserted", Some(hashes::fill_meets_a_write), "";
    "hash-expires", "C-16", "a hash is not answered from beyond its expiry", Some(hashes::expires), "";
    "hash-other-version", "V2", "nil and maps are in the version of the connection, or Redis's", Some(hashes::other_version), "nil-of-resp2";
    "absent-answers", "F3", "what is cached as absent is answered as Redis does, by every command", Some(absent::answers), "absent-counted";
    "absent-created", "C-3", "whatever creates a key ends what is cached of its absence", Some(absent::created), "invalidation-ignored";
    "edge-45-made-into-another-type", "E-45", "what makes a list or a set ends the absence with its packet", Some(absent::made_into_another_type), "makers-harmless";
    "edge-45-blocked-move", "E-45", "an absence is not cached while a move that blocks may end it", Some(absent::made_by_a_move_that_blocked), "makers-harmless";
    "absent-fill-meets-write", "C2", "a fill that finds no key, and that a write overtakes, is not inserted", Some(absent::fill_meets_a_write), "absent-for-any-version";
    "absent-told", "F3", "reads of absent keys are Redis's where it tells somebody of them", Some(absent::told), "absent-untold";
    "absent-other-version", "F3", "nil and maps are in the version of the connection", Some(absent::other_version), "absent-nil-of-resp2";
    "absent-expires", "C-16", "a key that has expired is absent, and not before", Some(absent::expires), "";
    "hash-too-large", "fills", "a hash that may not fit is not cached", Some(hashes::too_large), "";
    "hash-table", "V2", "a hash table is answered like a listpack, and whatever changes it ends that", Some(hashes::table), "";
    "hash-field-expires", "fills", "a hash table is not cached where fields may expire by themselves", Some(hashes::field_expires), "";
    "edge-05-tiny-fragments", "E-5", "a first fragment without the whole TCP header does not reach Redis", Some(cases::forged::tiny_fragments), "tiny-fragments";
    "edge-05-data-in-syn", "E-5", "data in a SYN do not reach Redis", Some(cases::forged::data_in_syn), "syn-data";
    "edge-06-silent-listener", "E-6", "a client that only listened for long is answered", Some(cases::forged::silent_listener), "paws-by-the-entry";
    "edge-06-silent-and-spliced", "E-6", "after a long silence an old timestamp says nothing", Some(cases::forged::silent_and_spliced), "paws-for-ever";
    "edge-07-ack-out-of-window", "E-7", "an acknowledgement out of the window changes nothing", Some(cases::forged::ack_out_of_window), "sequence-unjudged";
    "edge-07-rejected-for-sure", "E-7", "what is rejected is not executed, whatever Redis writes meanwhile", Some(cases::forged::rejected_for_sure), "rejected-in-doubt";
    "edge-07-reset-with-payload", "E-7", "payload of a reset is not scanned", Some(cases::forged::reset_with_payload), "reset-scanned";
    "edge-07-payload-older-than-its-syn", "E-7", "payload that the request refuses is not scanned", Some(cases::forged::payload_older_than_its_syn), "request-paws";
    "edge-07-fragment-out-of-window", "E-7", "a fragment out of the window loses no stream", Some(cases::forged::fragment_out_of_window), "fragment-unjudged";
    "edge-07-older-stream", "E-7", "payload out of the window fences nothing", Some(cases::forged::older_stream), "lost-unjudged";
    "edge-12-blind-fin", "E-12", "a FIN ends a connection only if TCP believes it", Some(cases::forged::blind_fin), "fin-anywhere";
    "edge-15-hole-filled", "E-15", "what lies beyond a hole goes up, and is marked before what fills the hole", Some(cases::ahead::hole_filled), "ahead-unscanned";
    "edge-15-any-order", "E-15", "pieces of a pipeline are scanned in order, whatever theirs is", Some(cases::ahead::any_order), "ahead-unscanned";
    "edge-15-copy-of-a-body", "E-15", "a copy of a body's first piece, on another CPU at the same time, takes nothing back", Some(cases::ahead::copy_of_a_body), "next-taken-back";
    "edge-15-pruned", "E-15", "what TCP forgot comes again, and nothing is lost by it", Some(cases::ahead::pruned), "";
    "edge-15-two-stories", "E-15", "who sends other bytes in place of kept ones loses its stream", Some(cases::ahead::two_stories), "story-uncompared";
    "edge-15-shorter-story", "O5", "the proof of a lost stream covers what was kept of it", Some(cases::ahead::shorter_story), "ahead-end-unproved";
    "edge-15-no-buffer", "E-15", "what finds no buffer is dropped, until one is given back", Some(cases::ahead::no_buffer), "ahead-not-given-back";
    "edge-15-many-holes", "E-15", "more holes than are followed hang nothing", Some(cases::ahead::many_holes), "ahead-head-without-range";
    "edge-15-hole-in-a-body", "E-15", "a command is whole with its last byte, in whichever order it came", Some(cases::ahead::hole_in_a_body), "ahead-half-command";
    "edge-15-old-timestamp", "E-15", "what TCP may refuse is not kept", Some(cases::ahead::old_timestamp), "ahead-paws-as-usual";
    "edge-44-rest-refused", "E-44", "what TCP refuses of a command's last body was not executed, whatever a list shows", Some(cases::ahead::rest_refused), "rest-proved";
    "edge-46-in-a-write", "E-46", "where Redis does not read a byte, ERB reads none", Some(cases::urgent::in_a_write), "urgent-read";
    "edge-46-told-ahead", "E-46", "no packet without new bytes tells of an urgent one", Some(cases::urgent::told_ahead), "urgent-told";
    "edge-46-told-before", "E-46", "no stream is taken up of which TCP awaits an urgent byte", Some(cases::urgent::told_before_erb), "urgent-awaited";
    "edge-47-said-unseen", "E-47", "what no program has seen loses the stream", Some(cases::forged::said_unseen), "bytes-unseen";
    "edge-15-ends", "E-15", "buffers of connections that end are given back", Some(cases::ahead::ends), "";
    "edge-16-steered", "E-16", "where TC works on another CPU nothing is dropped", Some(cases::forged::steered), "tc-overtaken";
    "edge-16-lost-behind-xdp", "E-16", "what was lost behind XDP is not waited for", Some(cases::forged::lost_behind_xdp), "";
    "edge-31-netfilter-resets", "E-31", "a reset that netfilter makes has the number that the client believes", Some(cases::lives::netfilter_resets), "nobodys-reset";
    "edge-31-reset-not-believed", "E-31", "a reset of no socket ends nothing of ERB's", Some(cases::lives::reset_of_nobody_is_lost), "nobodys-reset-ends";
    "edge-19-tagged-copies", "E-19", "copies of the timer bear the VLAN tag", Some(cases::forged::tagged_copies), "tag-forgotten";
    "edge-29-direct-return", "E-29", "answers leave as the kernel's packets do where a balancer hands requests on", Some(cases::devices::direct_return), "answers-turned";
    "edge-29-gateway-moves", "E-29", "a new gateway is answered once the kernel has sent something to it", Some(cases::devices::gateway_moves), "link-untried";
    "seldom-many-commands", "REFUSE_COMMANDS", "a packet of more commands than are read there is Redis's", Some(seldom::many_commands_in_a_packet), "";
    "seldom-request-with-fin", "ODD_FLAGS", "a request that comes with a FIN is Redis's, and answered", Some(seldom::request_with_fin), "";
    "seldom-long-packet", "LONG_PACKET", "a request longer than one MTU is Redis's", Some(seldom::long_packet), "";
    "seldom-old-time-wait", "SOCK_TIME_WAIT", "a TIME_WAIT older than ERB answers for itself", Some(seldom::time_wait_older_than_erb), "";
    "seldom-extra-reply", "REPLY_EXTRA", "a client that Redis refuses before it has asked is not counted", Some(seldom::refused_before_the_request), "";
    "seldom-closed-meanwhile", "REFUSE_RACE", "nothing is committed for a socket that closed since it was looked at", Some(seldom::closed_while_it_is_looked_at), "";
    "seldom-miss-ring", "MISS_RING_FULL", "misses that find no room are reported later", Some(seldom::misses_that_nobody_reads), "";
    "seldom-written-again", "FILL_INSERTED", "a key that is read between its writes is back before it is missed", Some(seldom::written_and_read), "written-forgotten";
    "seldom-half-writes", "FILL_INSERTED", "a key that is written as often as read is read again seldom, one that is mostly read at once", Some(seldom::as_many_reads_as_writes), "doubt-forgotten";
    "seldom-gave-up", "REXMIT_GAVE_UP", "an answer that nobody acknowledges is not repeated for ever", Some(seldom::answer_that_nobody_takes), "";
    "through-at-once", "W2", "what a SET says is answered from its reply on", Some(through::answered_at_once), "";
    "through-many", "W3", "what is written all the time is read from Redis once, at the end", Some(through::read_once_behind_many), "";
    "through-without-credit", "W2", "what a SET says is kept of a known string, whatever its credit", Some(through::kept_without_credit), "through-for-credit";
    "through-seldom", "W5", "what is written and not read is read from Redis while it has credit", Some(through::written_and_not_read), "";
    "through-unseen", "W3", "what a SET said hides no change for longer than it is answered, however late its reply leaves", Some(through::unseen_behind_it), "through-for-ever";
    "through-script", "W4", "a command whose keys are unknown ends what a SET said", Some(through::script_behind_it), "through-fence";
    "through-two-writers", "W1", "of two SETs at once neither is believed", Some(through::two_writers), "";
    "through-not-believed", "B1", "only one plain SET in its own packet, answered by OK alone, is believed", Some(through::not_believed), "";
    "through-refused", "W2", "a SET that Redis refuses says nothing", Some(through::refused), "through-refused";
    "through-said-otherwise", "B1", "bytes that come again for what TCP has lost may be others", Some(through::said_otherwise), "through-told-otherwise";
    "through-within-another", "B1", "an argument that looks like a SET is none", Some(through::within_another), "through-within";
    "through-other-database", "W2", "what a SET says is of its connection's database", Some(through::other_database), "through-no-database";
    "reports-both-ways", "E-41", "what is cached is true, whether Redis tells of all changes or of what was read", Some(reports::moves_both_ways), "reports-cache-kept";
    "reports-absent", "E-41", "what is absent was read too", Some(reports::absent_keys_are_read_too), "reports-of-nothing";
    "reports-while-absorbed", "E-41", "Redis tells of all while something is not drained", Some(reports::while_absorbed), "outstanding-unseen";
    "reports-another-feed", "E-41", "another feed begins with reports of all", Some(reports::another_feed), "";
    "closed-there-and-back", "E-41", "who was answered lives on while the cache is closed, others are not read, and what is read afterwards is true", Some(closed::there_and_back), "closed-untranslated";
    "closed-nobody-translated", "E-41", "no packet is looked at where nobody needs translation, and no entry is left", Some(closed::nobody_translated), "closed-kept";
    "closed-another-daemon", "E-41", "who takes over goes on with the word, and a detach ends it", Some(closed::another_daemon), "closed-forgotten";
    "closed-owing", "E-41", "requests pass unread only when all that was answered is in Redis", Some(cases::absorb::owed_while_closing), "closed-owing";
    "closed-at-the-switch", "E-41", "what is answered when the cache is closed is done before others pass unread", Some(closed::at_the_switch), "";
    "closed-beside-a-stop", "E-41", "a processor stands still while it answers, and nothing passes unread until it goes on", Some(closed::beside_a_stop), "closed-early";
    "closed-for-hours", "E-41", "a load that no cache helps closes it where that is allowed; it is opened to look again, but not what an operator has closed", Some(closed::for_hours), "closed-by-itself";
    "through-not-wanted", "W2", "nothing is believed while the daemon does not want it", Some(through::not_wanted), "through-unwanted";
    "edge-01-large-values", "E-1", "a value beyond every bound is asked for its size, once in minutes", Some(cases::large::large_values), "sizes-unasked";
    "edge-01-typeless", "E-1", "EXISTS and TTL have nothing filled", Some(cases::large::typeless), "typeless-fills";
    "edge-01-written-small", "E-1", "a write to what was too large may have made it small", Some(cases::large::written_small), "";
    "edge-01-grows", "E-1", "what grows between its size and its reading is read no further", Some(cases::large::grows), "";
    "edge-08-heartbeat", "E-8", "a busy client is never idle for Redis, with or without an idle limit", Some(cases::upkeep::heartbeat_without_idle_limit), "heartbeat-by-limit";
    "edge-17-late-state", "E-17", "the calls of a state that is late are not compared with later ones", Some(cases::upkeep::calls_of_a_late_state), "";
    "held-until-drained", "C-24", "what comes behind an absorbed write goes up when that is drained, in both tiers", Some(cases::held::until_drained), "held-not";
    "held-missed", "C-24", "a read that the express lane misses waits as well", Some(cases::held::missed), "lane-unordered";
    "held-asked-once", "C-23", "what waits does not wait for what is absorbed later", Some(cases::held::asked_once), "asked-for-ever";
    "held-asked-behind", "C-24", "what is asked for is all that was absorbed before its marks stood", Some(cases::held::asked_behind), "asked-early";
    "held-never", "C-22", "what tells of the server, or cures it, waits for nothing, but for what its client said before", Some(cases::held::never), "cure-held";
    "held-cured", "C-22", "what may cure a Redis that refuses a drain for long waits for it no longer", Some(cases::held::cured), "late-cure-held";
    "held-gate", "C-22", "what may make Redis refuse what was promised waits while writes may be answered, and no longer", Some(cases::held::gate), "gate-unheld";
    "held-reads", "C-24", "reads of drained sets pass, unless a write of their keys may still be under way", Some(cases::held::reads), "read-marked";
    "held-in-order", "C-23", "Redis gets what waits in its client's order", Some(cases::held::in_order), "";
    "held-others", "C-24", "others are answered from the cache meanwhile", Some(cases::held::others_are_answered), "";
    "held-no-bytes", "C-23", "acknowledgements, FIN and RST pass, and what is held acknowledges nothing", Some(cases::held::no_bytes), "held-acknowledged";
    "held-by-pieces", "C-24", "where a command goes on nothing is asked, where it takes effect it is", Some(cases::held::by_pieces), "late-unasked";
    "held-strange-listener", "C-22", "nor does it of a connection whose listener is not known, as after a start of Redis without a daemon", Some(cases::held::strange_listener), "strange-unread";
    "held-probe", "C-22", "one PING or INFO waits for nothing where it is not known where requests begin, nor where no entry counts them", Some(cases::held::probes), "probe-held";
    "held-unseen", "C-24", "payload that no entry counts waits for all", Some(cases::held::unseen), "unseen-unordered";
    "held-stands-still", "C-24", "who takes effects waits for nobody who does not get on", Some(cases::held::waits_for_nobody_who_stands_still), "";
    "held-lets-finish", "C-24", "who takes effects lets those finish who answer a write at that moment", Some(cases::held::lets_finish), "busy-unlooked";
    "absorb-while-redis-rests", "C-10", "a SET is answered while Redis rests, read back, and drained later, in all tiers", Some(cases::absorb::while_redis_rests), "";
    "absorb-own-past", "C-10", "a connection does not read what was before its own SET", Some(cases::absorb::own_past), "absorb-unfinished";
    "absorb-told-early", "C-10", "a SET's answer is not sent again before the SET has its LSN", Some(cases::absorb::told_early), "";
    "absorb-beside-a-script", "C-10", "what a script and a SET write at once ends as both were told", Some(cases::absorb::beside_a_script), "absorb-fenced";
    "absorb-late", "C-10", "while what was answered before has waited for too long a SET is delayed, and Redis does not get it", Some(cases::delayed::late), "absorb-however-late";
    "absorb-delayed-in-order", "C-10", "what its client says behind a delayed SET waits with it, and nothing is lost for TCP", Some(cases::delayed::in_order), "behind-not-delayed";
    "absorb-late-for-long", "C-10", "no SET is delayed for longer than a lease lasts", Some(cases::delayed::not_for_ever), "";
    "absorb-behind-a-command", "C-10", "a SET waits for the reply of a command on its key, and is absorbed then", Some(cases::delayed::behind_a_command), "marked-not-delayed";
    "absorb-behind-a-mark-that-stays", "C-10", "no SET waits for long for a command whose reply does not come", Some(cases::delayed::behind_a_mark_that_stays), "stuck-forgotten";
    "absorb-delayed-without-copy", "C-10", "a SET of which there is no copy goes up at once", Some(cases::delayed::without_copy), "delayed-uncopied";
    "absorb-owed-at-detach", "C-10", "nobody leaves while something that was answered is not in Redis", Some(cases::absorb::owed_at_detach), "leaves-owing";
    "absorb-asks-for-replicas", "C-36", "who asks for replicas waits until these have what was answered", Some(cases::absorb::asks_for_replicas), "wait-unsynced";
    "absorb-log-is-full", "C-10", "without room in the log SETs wait until there is some", Some(cases::absorb::log_is_full), "";
    "absorb-without-a-daemon", "C-10", "behind the lease nothing is absorbed, and what was is drained", Some(cases::absorb::without_a_daemon), "";
    "kept-all", "C-10", "of several processors each SET that is answered is in the kernel module's file, in its order", Some(cases::kept::all), "keep-unpushed";
    "kept-refused", "C-10", "what the kernel module does not take is not answered, and has no LSN", Some(cases::kept::refused), "keep-unreserved";
    "kept-changed", "C-10", "the module's file begins behind what another sink has kept, which does not ask it", Some(cases::kept::changed), "keep-whatever-sink";
    "copy-comes-again", "C-23", "a copy of what waits comes again when it may go, without its client's timer", Some(cases::injected::comes_again), "copies-forgotten";
    "copy-in-order", "C-23", "copies come in their order, when all may go that their connection said", Some(cases::injected::in_order), "";
    "copied-once", "C-23", "who repeats what waits has it copied once", Some(cases::injected::copied_once), "copied-always";
    "copy-held-once-more", "C-23", "a copy that waits once more is copied once more", Some(cases::injected::held_once_more), "copied-no-more";
    "copy-none", "C-23", "without a copy the client's repetition goes up", Some(cases::injected::without_copy), "";
    "copy-too-long", "C-23", "who waits is known without a copy, too", Some(cases::injected::too_long), "copies-cut";
    "copy-gone", "C-23", "behind its connection no copy comes again", Some(cases::injected::gone), "copy-for-another";
    "held-too-long", "C-23", "who waits longer than is allowed is reset, and nothing of it executed", Some(cases::injected::ended), "";
}

/// Traps that do not concern mode `read`, and why.
pub const NOT_IN_MODE_READ: &[(&str, &str)] = &[
    (
        "C-1",
        "dirty and in flight: no entry is ever dirty, writes are Redis's",
    ),
    (
        "C-2",
        "read marks: they keep writes from being absorbed, none is",
    ),
    (
        "C-4",
        "invalidations of dirty entries: there are none; clean ones are coh-15",
    ),
    ("C-6", "batches and cuts of the log: there is no log"),
    (
        "C-12",
        "drained hashes: nothing is drained, and a hash that changes is no longer cached",
    ),
    ("C-13", "NOLOOP hides own writes: the daemon writes no key"),
    ("C-19", "a drain that Redis refuses: nothing is drained"),
    (
        "C-25",
        "a journal ahead of Redis's log: there is no journal",
    ),
    (
        "C-27",
        "what a crash of Redis shows: only Redis's own log decides",
    ),
    ("C-28", "the watermark as a key: there is no watermark"),
    ("C-29", "numbers after a loss of power: there are none"),
    (
        "C-31",
        "the log ring's position: misses are hints and may be lost",
    ),
    (
        "C-32",
        "replies inside EXEC: fills are checked one by one, nothing is drained",
    ),
    ("C-33", "files of the journal: there is no journal"),
    (
        "C-36",
        "WAIT: it is never answered fast and counts Redis's own writes",
    ),
];
