"""What other codebases call what is here, so that whoever types their names is told ours."""

KEYS = (
    dict.fromkeys(("learning_rate", "lr", "max_lr"), "schedule.peak")
    | dict.fromkeys(("lr_scheduler_type", "lr_schedule", "lr_decay_style"), "schedule.kind")
    | dict.fromkeys(("warmup_steps", "warmup_iters"), "schedule.warmup")
    | dict.fromkeys(("cosine_learning_rate_final_fraction",), "schedule.end")
    | dict.fromkeys(("lr_decay_iters", "lr_decay_steps", "learning_rate_schedule_steps"), "schedule.decay_steps")
    | dict.fromkeys(("optim", "opt_type", "optimizer_type"), "optimizer.name")
    | dict.fromkeys(("beta1", "adam_beta1", "adam_b1"), "optimizer.b1")
    | dict.fromkeys(("beta2", "adam_beta2", "adam_b2"), "optimizer.b2")
    | dict.fromkeys(("eps", "adam_epsilon", "adam_eps"), "optimizer.epsilon")
    | dict.fromkeys(
        ("grad_clip", "max_grad_norm", "clip_norm", "gradient_clipping", "gradient_clip_val"), "optimizer.clip"
    )
    | dict.fromkeys(("gradient_clip", "gradient_clipping_threshold"), "optimizer.clip")
    | dict.fromkeys(("wd", "adam_weight_decay"), "optimizer.weight_decay")
    | dict.fromkeys(("max_steps", "max_iters", "num_steps", "train_steps", "total_steps"), "train.steps")
    | dict.fromkeys(("num_train_steps", "training_steps", "TRAIN_STEPS"), "train.steps")
    | dict.fromkeys(("gradient_accumulation_steps", "grad_accum_steps", "num_microbatches"), "train.accumulate")
    | dict.fromkeys(("global_batch_size", "train_batch_size"), "train.batch_size")
    | dict.fromkeys(("per_device_batch_size", "per_device_train_batch_size"), "train.batch_size")
    | dict.fromkeys(("label_smoothing_factor",), "train.label_smoothing")
    | dict.fromkeys(("init_from", "init_checkpoint", "resume_from"), "train.start_from")
    | dict.fromkeys(("eval_interval", "eval_steps", "eval_every", "steps_per_eval"), "evaluate.every")
    | dict.fromkeys(("eval_iters", "eval_batches", "max_eval_batches"), "evaluate.batches")
    | dict.fromkeys(("save_interval", "save_steps", "save_every", "checkpoint_period"), "checkpoint.every")
    | dict.fromkeys(("log_interval", "logging_steps", "log_every", "log_period"), "log.every")
    | dict.fromkeys(("save_total_limit", "max_to_keep"), "checkpoint.keep")
    | dict.fromkeys(("block_size", "seq_len", "seq_length", "max_seq_length", "max_target_length"), "data.length")
    | dict.fromkeys(("dataset", "dataset_name", "dataset_path", "train_file"), "data.train")
    | dict.fromkeys(("num_workers", "dataloader_num_workers", "grain_worker_count"), "data.workers")
    | dict.fromkeys(("mlm_probability",), "objective.share")
    | dict.fromkeys(("num_layers", "n_layer", "num_hidden_layers", "base_num_decoder_layers"), "model.layers")
    | dict.fromkeys(("num_heads", "n_head", "num_attention_heads", "base_num_query_heads"), "model.heads")
    | dict.fromkeys(("num_kv_heads", "num_key_value_heads", "base_num_kv_heads"), "model.kv_heads")
    | dict.fromkeys(("d_model", "n_embd", "hidden_size", "emb_dim", "base_emb_dim"), "model.width")
    | dict.fromkeys(("d_ff", "intermediate_size", "mlp_dim", "base_mlp_dim"), "model.ff")
    | dict.fromkeys(("hidden_act", "activation_function", "mlp_activations"), "model.activation")
    | dict.fromkeys(("attention_dropout", "attn_pdrop"), "model.dropout_attention")
    | dict.fromkeys(("tie_word_embeddings", "logits_via_embedding"), "model.tied_head")
    | dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "normalization_layer_epsilon"), "model.norm_epsilon")
    | dict.fromkeys(("bf16", "fp16", "precision"), "model.dtype")
    | dict.fromkeys(("gradient_checkpointing", "remat_policy"), "model.remat")
    | dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), "model.context")
    | dict.fromkeys(("attn_implementation", "flash_attention", "use_flash"), "model.attention_path")
    | {f"ici_{axis}_parallelism": f"mesh.{axis}" for axis in ("data", "fsdp", "sequence", "tensor")}
    | dict.fromkeys(("random_seed", "seed"), "seed")
)
OBJECTIVES = (
    dict.fromkeys(("clm", "lm"), "causal")
    | dict.fromkeys(("mlm", "masked_lm"), "masked")
    | dict.fromkeys(("rtd", "electra"), "replaced")
    | dict.fromkeys(("span", "span_corruption"), "spans")
    | {"plm": "permutation"}
)
KERNELS = ("flash", "flash_attention", "flash_attention_2", "sdpa", "eager", "splash", "cudnn", "triton", "xla")
KERNELS = (*KERNELS, "dot_product", "autoselected")  # MaxText's
COMPUTED = "names which places are seen, such as dense or local_256; what computes it is config.model.attention_path"

FOLDERS = (
    "out_dir",
    "output_dir",
    "save_dir",
    "ckpt_dir",
    "checkpoint_dir",
    "model_dir",
    "run_dir",
    "log_dir",
    "run_name",
)
RESUMED = "the same command goes on from the newest checkpoint of its --workdir"
IMPORTED = (
    "a model of Hugging Face's library becomes a work folder by `pretrain import --folder=FOLDER --workdir=RUN`, and a "
    "run begins with another one's weights by --config.train.start_from=RUN"
)
REPEATED = "a prompt is continued once for each time that it is given: --prompt=TEXT --prompt=TEXT"
WEIGHTS = ("model_name_or_path", "pretrained_model_name_or_path", "model_name", "model", "checkpoint")
COUNTED = "training is counted in updates, of config.train.batch_size rows each: set config.train.steps"
WARMUP = "a warm-up is so many updates, and no share of them: set config.schedule.warmup"
END = "the last rate is a share of the peak, such as 0.1: set config.schedule.end"
DROPPED = (
    "dropout has a rate for each place: config.model.dropout_attention and, as the kind of model has them, "
    "config.model.dropout, dropout_embedding, dropout_residual, dropout_ff and dropout_hidden"
)
ROTATED = "rotary positions are config.model.positions=rotary, whose base is 10,000"
DEVICES = "JAX takes the accelerator that it finds, and another by the environment: JAX_PLATFORMS=cpu, cuda or tpu"
COMPILED = "what is computed is always compiled"
TRACKED = (
    "figures are written into the work folder, as CSV, JSON lines and for TensorBoard (config.log), and nowhere else"
)
OF_CONFIGS = (  # a key, or a flag of a command that takes a config -> what to say of it
    dict.fromkeys(("epochs", "num_epochs", "num_train_epochs", "max_epochs"), COUNTED)
    | dict.fromkeys(("warmup_ratio", "warmup_steps_fraction"), WARMUP)
    | dict.fromkeys(("min_lr", "end_lr", "end_learning_rate", "final_learning_rate"), END)
    | {"rope_theta": ROTATED}
)
ANSWERS = {  # command, or "" for any -> flag -> what to say of it
    "": dict.fromkeys(("device", "accelerator", "platform"), DEVICES)
    | dict.fromkeys(("compile", "torch_compile", "jit"), COMPILED),
    "train": dict.fromkeys(("dropout_rate", "resid_pdrop", "embd_pdrop"), DROPPED)
    | dict.fromkeys(("resume", "resume_from_checkpoint", "restore", "load_checkpoint"), RESUMED)
    | {"init_from": f"{RESUMED}, and one without begins anew; {IMPORTED}"}
    | dict.fromkeys(WEIGHTS, IMPORTED)
    | dict.fromkeys(("eval_only", "do_eval"), "a run is scored by `pretrain evaluate --workdir=RUN`")
    | dict.fromkeys(("report_to", "wandb", "wandb_project", "logger"), TRACKED),
    "import": dict.fromkeys(WEIGHTS, IMPORTED),
    "generate": dict.fromkeys(("num_samples", "num_return_sequences", "n"), REPEATED)
    | dict.fromkeys(("start", "text", "input"), "what is continued is --prompt=TEXT")
    | {"do_sample": "tokens are sampled, unless --temperature=0 or --beams says otherwise"},
}

COMMANDS = (
    dict.fromkeys(("sample", "infer", "inference", "complete"), "generate")
    | dict.fromkeys(("finetune", "fine-tune", "fit", "pretrain", "resume"), "train")
    | dict.fromkeys(("eval", "test", "score"), "evaluate")
    | dict.fromkeys(("tokenize", "tokenise", "preprocess"), "prepare")
    | dict.fromkeys(("info", "summary", "params"), "describe")
    | {"convert": "export", "estimate": "plan"}
)
