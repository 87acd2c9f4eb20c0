"""A checkpoint as a model of EleutherAI's lm-evaluation-harness (extra `lm-eval`)."""

import math

from pretrain.errors import UserError
from pretrain.scoring.requests import Request
from pretrain.scoring.runner import cut_at, decode_texts

MOST = 256  # tokens of a generated text, as the harness has it


def lm_eval_model(run, start_token: bool = False):
    """A run of `pretrain.open` as the model for `lm_eval.simple_evaluate(model)`.

    start_token: begin each prompt with the token that began texts in training, the harness's add_bos_token. Errors:
    UserError without the package, and for models that give no likelihood.
    """
    try:
        from lm_eval.api.model import LM
    except ImportError:
        raise UserError("lm_eval: not installed. Run pip install -e '.[lm-eval]'.") from None
    scorer = run.scorer(begins=start_token)

    class Longhaul(LM):
        """Likelihoods and greedy texts of one checkpoint."""

        def loglikelihood(self, requests, disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            # Choices of a question have one context, which is read once.
            groups: dict[str, list[int]] = {}
            for number, request in enumerate(requests):
                groups.setdefault(request.args[0], []).append(number)
            found: list = [None] * len(requests)
            asked = [[Request(*requests[i].args) for i in numbers] for numbers in groups.values()]
            for numbers, scores in zip(groups.values(), scorer.score(asked), strict=True):
                for number, one in zip(numbers, scores, strict=True):
                    found[number] = math.fsum(one.log_probs.tolist()), bool(one.greedy.all())
            return found

        def loglikelihood_rolling(self, requests, disable_tqdm: bool = False) -> list[float]:
            scores = scorer.score_rows([scorer.windows(request.args[0]) for request in requests])
            return [math.fsum(x for one in some for x in one.log_probs.tolist()) for some in scores]

        def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
            found, by_length = [""] * len(requests), {}
            for number, request in enumerate(requests):
                options = request.args[1]
                if options.get("do_sample") or options.get("temperature", 0):
                    raise UserError("lm_eval: asks for samples. Set do_sample to false.")
                by_length.setdefault(options.get("max_gen_toks", MOST), []).append(number)
            params = run.local_params
            for most, numbers in by_length.items():
                texts = decode_texts(scorer, run.model, params, [requests[i].args[0] for i in numbers], most)
                for number, text in zip(numbers, texts, strict=True):
                    stop = requests[number].args[1].get("until") or []
                    found[number] = cut_at(text, [stop] if isinstance(stop, str) else stop)
            return found

    return Longhaul()
