"""The recipes that the end-to-end tests run for three steps, and what each is changed in so that a tiny policy that was
cold-started for a minute has something to learn from."""

# Nearly all answers are wrong: no accuracy range could be filled.
ANY_ACCURACY = "recipe.filters.accuracy=null"
PATIENT = "recipe.filters.refill_limit=50"
LEAVE_ONE_OUT = (
    "recipe.advantage=rloo",
    "recipe.loss_aggregation=seq-mean-token-sum-norm",
    "recipe.loss_scale=160",
)
# DAPO's punishment makes rewards differ although no answer is right.
DIFFERENT_LENGTHS = "recipe.overlong_buffer=150"

BYPASS = ("correction=bypass", "correction.log_probs_every=2")
PARTIAL = ("pipeline=partial", "train.eval_every=-1")

# In the pipeline with PP=2 and function calls.
PIPELINE = {"otc": (DIFFERENT_LENGTHS,)}  # group reward, KL to a reference policy
EVERY_CHANGE = {
    # global normalisation, left-out samples, trajectories cut off by the end of a step
    "zerotir": (ANY_ACCURACY, PATIENT, DIFFERENT_LENGTHS, *PARTIAL),
}
NIGHTLY = {
    # refill, predicted observations, the rollout engine's log-probabilities in every other step
    "simpletir": (ANY_ACCURACY, PATIENT, "recipe.observation_weight=0.1", *BYPASS),
    "torl": (*LEAVE_ONE_OUT, DIFFERENT_LENGTHS),  # SkyRL's estimator and loss; short observations
    "retool": (),
    "grpo": (DIFFERENT_LENGTHS,),
    "artist": (),
    "gspo": (DIFFERENT_LENGTHS,),
    "cispo": ("recipe.filters.all_equal=false", DIFFERENT_LENGTHS),
    "dr_grpo": (DIFFERENT_LENGTHS,),
    "dapo": ("recipe.filters.all_equal=false", DIFFERENT_LENGTHS),
}
# Nightly, on data of their own. Tool-N1 gives nothing for a call that is nearly right, which the short cold start's all
# are: lengths must differ then.
FUNCTIONS = {"tool_n1": (DIFFERENT_LENGTHS,), "toolrl": ()}
REPOSITORIES = {"skyrl": ("recipe.overlong_buffer=400",)}
