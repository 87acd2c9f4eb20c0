"""`pretrain evaluate --tasks=...`: what a checkpoint knows without training."""

import json
import math
from pathlib import Path

import jax

from input_pipeline.sources.parser import named_sources
from pretrain.commands.arguments import Evaluate
from pretrain.distributed.init import print_on_host0
from pretrain.errors import UserError
from pretrain.metrics.tables import one_line, show
from pretrain.run import Run
from pretrain.scoring.contamination import held_items, open_stores
from pretrain.scoring.runner import Questions, Result, Runner, centered_mean, write_rows
from pretrain.scoring.task_table import task_named
from pretrain.workdir import Workdir, write


def ask_tasks(config, arguments: Evaluate) -> None:
    """Asks the tasks, prints their metrics and keeps them in the work folder, in scores/STEP.json."""
    data = named_sources(arguments.data, "--data")
    tasks = [task_named(name, data) for name in arguments.tasks.split(",")]
    names = {task.name for task in tasks}
    for name in data:
        if name.partition("/")[0] not in names:
            raise UserError(f"--data={name}: names none of --tasks. Write TASK:SOURCE, or TASK/shots:SOURCE.")
    if not all(number.isdecimal() for number in arguments.shots.split(",")):
        raise UserError(f"--shots={arguments.shots}: not numbers. Write them as 0,1,5.")
    shots = [int(number) for number in arguments.shots.split(",")]
    run = Run(arguments.workdir, arguments.step, None, arguments.average, print_on_host0)
    # Batches hold so many tokens; --batch_size counts rows of the whole context.
    tokens = arguments.batch_size * run.model.context
    scorer = run.scorer(begins=arguments.start_token, within_word=arguments.within_word, tokens=tokens)
    runner = Runner.build(scorer, run.model, run.variables["params"], run.spec.layout)
    folder, tokenizer = arguments.contamination, run.tokenizer
    stores = open_stores(folder, tokenizer.fingerprint) if folder else ()
    # Mistakes in the data of the last task are found before the first is asked.
    asked = [Questions.read(task, arguments.limit, any(shots)) for task in tasks]
    results = []
    try:
        for questions in asked:
            held = held_items(stores, tokenizer.encode, questions) if stores else ()
            for number in shots:
                results.append(runner.run(questions, number, held, print_on_host0))
                if results[-1].cut:
                    print_on_host0(
                        f"warning: {results[-1].cut:,} requests of {questions.task.name} are longer than the context "
                        f"of {run.model.context} tokens and lose their beginning"
                    )
    finally:
        # What was asked before a mistake, such as a task that the model cannot do, is not lost.
        if results and jax.process_index() == 0:
            report(results, run.step, arguments)
            keep([one.to_json() for one in results], Workdir(arguments.workdir).scores(run.step))


def keep(found: list[dict], path: Path) -> None:
    """Adds results to those that a work folder has of a checkpoint; the same task and shots are replaced."""
    kept = json.loads(path.read_text())["tasks"] if path.is_file() else []
    by_task = {(one["task"], one["shots"]): one for one in (*kept, *found)}
    try:
        path.parent.mkdir(exist_ok=True)
        write(path, json.dumps({"tasks": [*by_task.values()]}, indent=1).encode())
    except PermissionError:
        print_on_host0(f"warning: {path} cannot be written")


def report(results: list[Result], step: int, arguments: Evaluate) -> None:
    """Prints results as a table or JSON object, and writes --predictions."""
    mean = centered_mean(results)
    found = {"step": step, "tasks": [one.to_json() for one in results]} | (
        {} if math.isnan(mean) else {"centered_mean": mean}
    )
    if arguments.predictions:
        write_rows(Path(arguments.predictions), results)
    if arguments.format == "json":
        print(one_line(found))
        return
    table = [
        [one.task.name, one.shots, len(one.outcomes), name, measure.value, measure.stderr]
        for one in results
        for name, measure in one.measures.items()
    ]
    columns = ("task", "shots", "items", "metric", "value", "stderr")
    show(f"checkpoint {step}", columns, table)
    if arguments.contamination:
        clean = [
            [one.task.name, one.shots, one.clean[0], name, measure.value, measure.stderr]
            for one in results
            for name, measure in one.clean[1].items()
        ]
        show("items that share no 13 tokens with the training text", columns, clean)
    if not math.isnan(mean) and len(results) > 1:
        print(f"mean of (acc - chance) / (1 - chance): {mean:.4f}")
