"""What reviews of the guard found, on GPUs and ranks and of public programs, each with the test that holds it.

Numbers are those of the two reports; a letter parts what one number names.
"""

from __future__ import annotations

import pytest
from tests.trial_audit import is_held, numbers_of

REVIEWS, ARMS = "monitor/test_reviews.py", "monitor/replay/test_arms.py"
BUDGET = "device/test_budget.py:test_a_healthy_step_stays_within_the_budget"
RANKS_BUDGET = "device/test_budget.py:test_a_healthy_step_of_two_ranks_stays_within_the_budget"
ON_A_DEVICE, LIMITS = "device/test_investigation.py", "monitor/replay/test_limits.py"
COMPILED, TRIAL = "monitor/test_compiled.py", "monitor/replay/test_trial.py"
DEEPSPEED, SHARDED, RUN = "integrations/test_deepspeed.py", "monitor/test_sharded.py", "monitor/test_run.py"

OF_GPU = {
    "1a a float16 warm-up whose loss cannot be read is stopped": "amp_focal_warmup",
    "1b and one without memory for a replay": (
        "device/test_budget.py:test_a_bad_step_changes_nothing_where_memory_is_full"
    ),
    "2a one rank alone runs a model that communicates": "fsdp1_wrapped",
    "2b out of memory on one rank of those that run together": (
        f"{ON_A_DEVICE}:test_what_ranks_run_together_needs_room_for_a_whole_step"
    ),
    "3a no budget of seconds while others wait": f"{LIMITS}:test_a_run_ends_in_the_middle_where_other_ranks_wait",
    "3b nor between experiments": f"{LIMITS}:test_no_run_begins_once_the_seconds_are_used_up",
    "4a a collective of all processes in every step": "uneven_two_trainings",
    "4b the tensor of a collective on another device than its backend's": (
        f"{ON_A_DEVICE}:test_what_lies_on_the_host_is_reduced_where_the_backend_can"
    ),
    "5 torch.save of a watched model": "saved_whole_model",
    "6a a watched model cannot be compiled whole": "compiled_fullgraph_hooks_free",
    "6b or graphed": "graphable_module_check",
    "6c a capture is broken": "device/test_budget.py:test_a_step_that_is_captured_is_left_alone",
    "6d a compiled step of the optimizer": (
        f"{COMPILED}:test_a_step_of_the_optimizer_that_is_compiled_leaves_the_dispatcher_whole"
    ),
    "7 reading the graph consumes what hooks hold": "offloaded_activations",
    "8 an arm can end the CUDA context": f"{ARMS}:test_ids_that_are_no_tokens_are_not_labels",
    "9 the gate fails open": (
        "monitor/test_exceptions.py:test_a_fault_of_finitune_leaves_the_run_alone_and_is_said_once"
    ),
    "10a a run that must end does not, on a full disk": f"{REVIEWS}:test_a_full_disk_does_not_keep_a_run_alive",
    "10b in a thread": f"{REVIEWS}:test_a_step_in_a_thread_of_its_own_ends_the_run_too",
    "11 memory that is kept": BUDGET,
    "12 hooks on AccumulateGrad run in a replay": f"{REVIEWS}:test_hooks_of_a_reducer_run_once",
    "13a nothing is located under DDP": "ddp_unused_one_bad_rank",
    "13b a factor of the loss is taken for a scale": "huge_hand_scale",
    "14a hardware is blamed for a second backward": "one_trunk_two_backwards",
    "14b for a context of the loop": f"{REVIEWS}:test_a_context_that_the_replay_lacks_is_no_fault_of_the_hardware",
    "14c for a kernel of the compiler": f"{COMPILED}:test_a_kernel_of_the_compiler_is_no_fault_of_the_hardware",
    "15a the backward of another model": "actor_critic_bad_critic",
    "15b a step that the loop drops": (
        "monitor/test_gate.py:test_gradients_dropped_by_the_loop_itself_are_a_skipped_step"
    ),
    "16 everything is copied for one float16 tensor": BUDGET,
    "17 ZeRO with an offloaded optimizer is not seen": (
        f"{DEEPSPEED}:test_a_bad_gradient_is_found_on_its_step_and_changes_nothing"
    ),
    "18a kernels that aten does not see": f"{REVIEWS}:test_a_kernel_outside_of_aten_blames_its_module",
    "18b threads": f"{REVIEWS}:test_operators_of_another_thread_are_not_said_to_be_seen",
    "19 norms and names of FSDP 1": "fsdp1_wrapped",
    "20a the reduction check samples norms alone": (
        "monitor/test_reduction.py:test_fires_for_a_bucket_that_is_filled_again_while_it_is_sent"
    ),
    "20b and its price": RANKS_BUDGET,
    "20c a parameter of one rank alone": "monitor/test_reduction.py:test_stays_quiet_and_bit_identical",
    "21a withholding changes state": f"{REVIEWS}:test_a_discarded_step_changes_nothing_of_the_group",
    "21b so does a trial update": f"{TRIAL}:test_what_groups_keep_is_taken_back",
    "22 float8 weights": f"{REVIEWS}:test_float8_weights_are_read",
    "23 last-good is held by every rank": (
        f"{SHARDED}:test_a_persistent_fault_ends_both_and_the_last_good_weights_are_whole"
    ),
    "24 an assertion of the user's model is called finitune's": (
        "device/test_budget.py:test_a_fault_of_the_model_on_the_device_is_the_models"
    ),
    "25 an interrupted forward": f"{REVIEWS}:test_after_an_interrupted_forward_losses_are_read",
    "26 input buffers that are filled again": f"{REVIEWS}:test_a_buffer_that_is_filled_again_is_no_divergence",
    "27 Python state of modules": f"{REVIEWS}:test_a_replay_leaves_the_attributes_of_modules",
    "28 sequence numbers of threads": (
        "monitor/origin/test_locate_backward.py:test_a_backward_that_runs_its_forward_again_names_the_module"
    ),
    "29 devices that are neither cpu nor cuda": f"{REVIEWS}:test_the_accelerator_that_is_there_is_used",
    "30 attention that refuses float32": f"{REVIEWS}:test_attention_that_refuses_float32",
    "31 master copies are not watched": "half_master_weights_overflow",
    "32 large buffers are cloned for each replay": f"{REVIEWS}:test_large_buffers_are_not_copied",
    "33 everything is searched for bad elements": f"{ON_A_DEVICE}:test_a_large_tensor_is_searched_in_chunks",
    "34 copies of an experiment before its limit": f"{TRIAL}:test_a_copy_in_float32_is_refused_before_it_is_made",
    "35 a norm on the CPU that DeepSpeed knows": (
        "DeepSpeed measures it after the point where the verdict must be known; reading it later would let a step pass."
    ),
    "36 one optimizer per parameter": "optimizer_in_backward_sick",
    "37 a logged line walks the whole run": "test_printed.py:test_a_long_run_is_not_walked_at_each_line",
    "38 masked scores are kept to the end of a look": f"{REVIEWS}:test_masked_scores_are_not_kept",
    "39 the allocator keeps what a replay reserved": (
        f"{ON_A_DEVICE}:test_what_a_replay_left_in_the_allocator_is_given_back"
    ),
    "squares that overflow float32, in one process": "huge_gradients_sgd",
    "and on ranks": "monitor/test_large_norms.py:test_ranks_look_at_the_elements_before_they_discard",
    "a part of the shards as the norm of a bad step": f"{SHARDED}:test_a_fault_on_one_rank_is_discarded_on_both",
}
OF_PROGRAMS = {
    "1 a watched model cannot be pickled or scripted": "saved_whole_model",
    "2a one optimizer over two modules": "chain_of_two_modules",
    "2b bare tensors": "raw_tensors_mixture",
    "2c a Python that cannot be watched": "isolated_interpreter",
    "3a death by a value that is not finite is called healthy": "crash_multinomial_on_nan",
    "3b before the first step": f"{RUN}:test_what_dies_of_a_damaged_weight_names_it",
    "4 no diagnosis where the program's Python lacks packages": (
        "monitor/test_torch_alone.py:test_nothing_but_torch_is_needed_in_the_process_of_the_user"
    ),
    "5 the rate is blamed for Adam in float16": "half_adam_default_eps",
    "6 no location under DDP": "ddp_nan_weight_torchrun",
    "7a one report per optimizer": "optimizer_in_backward_sick",
    "7b Muon beside AdamW": "muon_and_adamw_factor",
    "8a a trainer's older norm is called untrue": "test_printed.py:test_nothing_is_said_where_nothing_is_hidden",
    "8b lines that say nothing": "test_trial_findings.py:test_users_19_every_do_line_says_what_to_do",
    "8c a bad sample is never proved": "infinite_label",
    "8d no rank is named": "ddp_unused_one_bad_rank",
}


@pytest.mark.parametrize("finding", [*OF_GPU, *OF_PROGRAMS])
def test_every_finding_has_its_test_or_a_reason(finding: str) -> None:
    assert is_held({**OF_GPU, **OF_PROGRAMS}[finding])


def test_no_number_of_a_report_is_left_out() -> None:
    assert numbers_of(OF_GPU) == set(range(1, 40))
    assert numbers_of(OF_PROGRAMS) == set(range(1, 9))
