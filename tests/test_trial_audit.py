"""What new users and attackers found when they tried everything, each finding with the test that holds it.

Numbers are those of their two reports; a letter parts what one number names.
"""

from __future__ import annotations

import pytest
from tests.trial_audit import is_held, numbers_of

FINDINGS, WORDS = "test_trial_findings.py", "test_trial_words.py"
LOGS = "diagnosis/logged/test_plain_logs.py"
KINDS = "diagnosis/logged/test_kinds_of_logs.py"
INCOMPLETE = "test_incomplete.py"
TRAPS = "test_traps.py:test_fires_with_its_line_and_with_something_to_do"
HOSTILE = "test_recording_hostile.py"
DIALECTS, REPAIR = "sources/test_dialects.py", "test_repair_configs.py"
RUN = "monitor/test_run.py"
PROOF = "monitor/test_proof_hostile.py"
MEMORY = "sources/test_little_memory.py"

OF_USERS = {
    "1a a mask handed over by position is taken for none": (
        f"{WORDS}:test_users_1_a_mask_handed_over_by_position_is_none_that_lets_all_be_seen"
    ),
    "1b proved beside a rival with the same experiments": (
        f"{WORDS}:test_users_1_nothing_is_proved_while_a_rival_predicts_the_same"
    ),
    "2a auto is written into a trainer's file": f"{FINDINGS}:test_users_2_auto_goes_to_deepspeed_s_file_alone",
    "2b auto where a number belongs is ok": f"{FINDINGS}:test_users_2_auto_where_a_number_is_needed_is_refused",
    "3 a remedy that its experiment refuted": f"{FINDINGS}:test_users_3_what_an_experiment_refuted_is_not_proposed",
    "4a Python scripts are not read": "sources/test_python.py:test_fires_names_are_resolved",
    "4b notebooks are not read": "sources/test_python.py:test_a_notebook_has_cells",
    "4c what is computed is not said": "sources/test_python.py:test_stays_quiet_what_is_computed_is_said_to_be",
    "4d verl, OpenRLHF, Hydra are not read": f"{DIALECTS}:test_the_first_line_says_what_was_understood",
    "4e uv run is no launch": "sources/test_started.py:test_fires_for_every_way_to_start_a_program",
    "4f one interpolation refuses the file": f"{DIALECTS}:test_users_4_one_interpolation_refuses_nothing_else",
    "5a a Hydra file of which nothing was read is ok": (
        f"{DIALECTS}:test_users_5_float16_weights_under_a_scaler_are_seen_through_hydra"
    ),
    "5b ok without tokenizers": f"{INCOMPLETE}:test_users_5_token_rows_are_not_ok_without_the_package",
    "5c check() of nothing is ok": f"{INCOMPLETE}:test_users_5_nothing_at_all_is_not_ok",
    "5d nothing says what was understood": f"{DIALECTS}:test_the_first_line_says_what_was_understood",
    "5e nothing to say counts as passed": "test_preflight.py:test_a_name_alone_clears_no_cause_that_lies_in_the_model",
    "6a the model and data that a file names": f"{INCOMPLETE}:test_users_6_a_named_model_and_its_data_are_read",
    "6b a name on the hub": f"{INCOMPLETE}:test_users_6_a_name_on_the_hub_is_looked_up_in_its_cache",
    "6c data that are a folder": f"{INCOMPLETE}:test_users_6_data_may_be_a_folder",
    "6d the card that a scheduler is asked for": "sources/test_started.py:test_the_scheduler_is_asked_for_a_card",
    "6e the card of this machine": "sources/test_this_machine.py:test_fires_for_the_card_of_this_machine",
    "7a a race of DeepSpeed in a plain log": (f"{LOGS}:test_ordinary_causes_come_before_those_whose_frame_nobody_saw"),
    "7b rare causes of a CSV or in bfloat16": f"{KINDS}:test_users_7_no_rare_cause_without_its_frame",
    "8 a loss after a lost gradient blames the forward": (
        f"{LOGS}:test_a_loss_after_a_lost_gradient_was_made_by_its_update"
    ),
    "9a steps, scale and rate of Megatron": f"{KINDS}:test_users_9_megatron_s_own_steps_scale_and_rate_are_read",
    "9b rows are called steps": f"{LOGS}:test_rows_without_a_step_are_called_rows",
    "9c a loss scale of 1 is called float16": f"{KINDS}:test_users_9_a_loss_scale_is_that_of_float16",
    "10 a crash is healthy": f"{LOGS}:test_a_log_that_ends_in_a_crash_is_an_incident",
    "11a the export of a W&B panel": "sources/test_trackers.py:test_users_11_the_export_of_a_panel_of_wandb",
    "11b stdin": "test_newest_run.py:test_users_11_what_is_piped_in_is_read",
    "12a guesses look like verdicts": "reports/test_terminal.py:test_unproved_unknown_and_unlocated_are_said",
    "12b a safe patch of what nobody saw": f"{KINDS}:test_users_12_a_guess_without_a_setting_has_no_patch",
    "12c what the text says of cards": f"{LOGS}:test_what_the_text_says_of_cards_and_dtype_counts",
    "13a noise near zero is a climb": f"{WORDS}:test_users_13_noise_near_zero_is_no_climb",
    "13b the rate that was used": f"{LOGS}:test_the_rate_that_was_used_stands_beside_the_one_that_is_proposed",
    "13c 2.0000000000000003e-06": f"{WORDS}:test_users_13_numbers_are_written_as_people_write_them",
    "13d last good weights that are ruined": (
        "monitor/test_persistent_fault.py:test_a_persistent_fault_ends_the_run_with_the_last_good_weights"
    ),
    "14a to decide decides nothing": f"{FINDINGS}:test_users_3_what_an_experiment_refuted_is_not_proposed",
    "14b a detached term is called non-finite": f"{FINDINGS}:test_users_14_a_term_that_is_detached_hides_no_overflow",
    "14c the target is nan": f"{FINDINGS}:test_users_14_the_statement_that_makes_the_target_nan",
    "14d the divisor": "monitor/statements/test_bad_statement.py:test_a_target_that_was_divided_by_its_own_spread",
    "14e ratios of policies": "causes/test_weighed.py:test_speaks_for_it",
    "15 an empty row of the mask is unknown": f"{FINDINGS}:test_users_15_an_empty_row_of_the_mask_is_named",
    "16a names of the README": "test_live_objects.py:test_the_names_of_the_readme_are_there",
    "16b results print": "test_live_objects.py:test_results_are_printed_as_the_command_line_prints_them",
    "16c arguments in memory": "test_live_objects.py:test_fires_for_arguments_in_memory",
    "16d an optimizer of another model": f"{WORDS}:test_users_16_an_optimizer_belongs_to_its_model",
    "17 the commonest traps": TRAPS,
    "18a nothing is said when all is well": (f"{RUN}:test_a_healthy_program_prints_the_same_and_ends_the_same"),
    "18b a flood in observe, and text in a bar": (
        f"{WORDS}:test_users_18_a_fault_in_every_step_is_said_rarer_and_rarer_and_never_inside_a_bar"
    ),
    "18c two optimizers are one": "ppo_two_optimizers",
    "18d a second run in one directory": f"{FINDINGS}:test_hostile_20_a_second_run_leaves_the_first_one_s_rows",
    "18e the newest run": "test_newest_run.py:test_users_18_the_newest_run_is_taken_and_said",
    "19a apply takes everything": f"{REPAIR}:test_only_safe_patches_of_errors_and_warnings_are_taken_unasked",
    "19b safe and unsafe are explained nowhere": (
        "test_newest_run.py:test_users_19_remedies_are_listed_with_what_their_words_mean"
    ),
    "19c do lines that say nothing": f"{FINDINGS}:test_users_19_every_do_line_says_what_to_do",
    "19d a misspelt key has no patch": "test_repair_misspelt.py:test_the_key_is_renamed_and_nothing_else",
    "20a None and 1e9 in the timeline": f"{FINDINGS}:test_users_20_the_page_says_what_each_mark_is",
    "20b bars without a name, no mark of a backward": (
        "reports/test_charts.py:test_users_20_each_row_says_its_name_and_the_origin_has_a_mark"
    ),
    "20c magnitudes of the backward": "A recording holds those of the forward; the page says so, and marks the module.",
    "20d charts at 400 px": "Charts scroll sideways there, with a bar that the browser shows or hides.",
    "each dies of the first bad file": (
        f"{INCOMPLETE}:test_users_each_file_is_reported_and_the_highest_code_is_returned"
    ),
    "findings have no line": "sources/test_python.py:test_findings_have_the_line",
    "exit codes of the README": "test_cli.py:test_check_fails_on_severity",
    "pip install finitune": "It is the name of the package; the README installs a checkout.",
    "causes cannot be searched": f"{WORDS}:test_users_19_causes_are_searched_and_a_remedy_is_no_cause",
    "check . and -q, -V": f"{INCOMPLETE}:test_quiet_prints_findings_alone_and_keeps_the_exit_code",
    "healthy of how many steps": "test_cli.py:test_diagnose_reads_logs",
    "inject into no module": (
        f"{RUN}:test_an_injection_into_a_module_that_is_not_there_ends_the_program_before_its_first_step"
    ),
    "an option without its value": f"{WORDS}:test_users_part_2_an_option_without_its_value_points_to_its_verb",
    "submodules called directly": "submodules_called_directly",
    "a directory that is not there has no recording": "test_cli.py:test_bad_usage_and_bad_input_are_one_line_and_2",
    "no comparison of two runs": "test_side_by_side.py:test_the_command_line_prints_it_and_writes_a_page",
    "apply prints no diff": "test_cli.py:test_repair_passes_everything_on",
    "docstrings have no example": f"{WORDS}:test_users_16_each_verb_has_an_example",
    "a folder and a train.py": "test_newcomer.py:test_from_an_empty_folder_to_a_report",
    "stiff words of the Chinese README": "test_house.py:test_the_two_readmes_are_twins",
}
OF_ATTACKERS = {
    "1 an adapter of a capture imports": f"{PROOF}:test_the_adapter_of_a_capture_imports_nothing",
    "1b so does the file of an adapter": f"{PROOF}:test_the_configuration_of_an_adapter_is_not_followed",
    "2 a report follows a link": f"{HOSTILE}:test_the_report_replaces_a_link_and_not_what_it_leads_to",
    "3 proofs are appended outside": f"{PROOF}:test_nothing_is_appended_outside",
    "3b other names of ranks": f"{HOSTILE}:test_only_the_names_that_are_written_are_read",
    "4 secrets of the command line": "test_command_line.py:test_a_recording_does_not_hold_them",
    "5 a billion layers": f"{MEMORY}:test_any_number_of_layers",
    "6 pipes and devices": f"{HOSTILE}:test_what_is_no_file_of_the_recording_is_left_out",
    "6b a sparse file": f"{HOSTILE}:test_the_memory_stays_small",
    "7 a full disk leaves no trace": f"{HOSTILE}:test_a_disk_that_stays_full_leaves_a_gap_that_is_said",
    "8 Ctrl-C for the launcher": f"{FINDINGS}:test_hostile_8_ctrl_c_for_the_launcher_alone_ends_the_training",
    "9a Parquet": f"{MEMORY}:test_a_dictionary_of_parquet",
    "9b a row of 60 MB": f"{MEMORY}:test_a_row_of_60_megabytes",
    "9c a zip that unpacks": f"{MEMORY}:test_a_compressed_checkpoint",
    "9d a normalizer that multiplies": f"{MEMORY}:test_a_normalizer_that_multiplies",
    "9e a template that makes links": f"{MEMORY}:test_a_template_that_makes_links",
    "9f wide embeddings": f"{MEMORY}:test_an_embedding_with_too_many_or_too_wide_rows",
    "9g a million tensors": f"{MEMORY}:test_odd_headers",
    "10 a regular expression without an end": (
        f"{PROOF}:test_a_regular_expression_is_replaced_by_the_modules_that_were_trained"
    ),
    "11 20,000 incidents": f"{HOSTILE}:test_many_incidents_are_read_in_linear_time",
    "12a tracebacks of spoilt captures": f"{PROOF}:test_a_spoilt_capture_of_wrong_types_is_one_line",
    "12b tracebacks of odd events": f"{HOSTILE}:test_odd_events_are_no_traceback",
    "12c numbers of thousands of digits": f"{MEMORY}:test_yaml_with_numbers_of_thousands_of_digits",
    "12d a tokenizer that gives up": f"{MEMORY}:test_a_regular_expression_that_gives_up",
    "13 a capture that cannot be run is sound": f"{PROOF}:test_an_objective_that_is_none_is_not_called_sound",
    "14 a format of the future": f"{HOSTILE}:test_a_format_of_the_future_is_refused_in_one_line",
    "15 links of a model are copied": "test_repair_hostile.py:test_what_is_no_file_of_the_model_is_not_copied",
    "16 temporaries of a killed repair": (
        "test_repair_hostile.py:test_what_a_killed_repair_left_is_removed_by_the_next"
    ),
    "17 python -I": f"{FINDINGS}:test_hostile_17_a_python_that_is_not_watched_is_said_to_be_so",
    "18 the user's sitecustomize": f"{FINDINGS}:test_hostile_18_the_users_own_sitecustomize_can_be_imported",
    "19 a million columns": f"{FINDINGS}:test_hostile_19_a_table_of_many_columns_is_one_short_line",
    "20a a second run in one directory": f"{FINDINGS}:test_hostile_20_a_second_run_leaves_the_first_one_s_rows",
    "20b a read-only file is patched": "Renaming wants a writable folder alone; the original stays beside it.",
    "20c a directory that cannot be written": f"{FINDINGS}:test_hostile_20_a_directory_that_cannot_be_made_is_said",
}


@pytest.mark.parametrize("finding", [*OF_USERS, *OF_ATTACKERS])
def test_every_finding_has_its_test_or_a_reason(finding: str) -> None:
    assert is_held({**OF_USERS, **OF_ATTACKERS}[finding])


def test_no_number_of_a_report_is_left_out() -> None:
    for findings in (OF_USERS, OF_ATTACKERS):
        assert numbers_of(findings) == set(range(1, 21))
