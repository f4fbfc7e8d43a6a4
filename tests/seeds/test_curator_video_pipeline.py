"""The split pipeline of NeMo Curator's video tutorial, with only its import lines changed."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.video import (
    ClipFrameExtractionStage,
    ClipTranscodingStage,
    ClipWriterStage,
    FixedStrideExtractorStage,
    MotionFilterStage,
    MotionVectorDecodeStage,
    PreviewStage,
    TransNetV2ClipExtractionStage,
    VideoFrameExtractionStage,
    VideoReader,
)
from tests.video.film_fixtures import FILM


def create_video_splitting_pipeline(args: Namespace) -> Pipeline:
    pipeline = Pipeline(name="video_splitting", description="Split videos into clips")
    pipeline.add_stage(VideoReader(input_video_path=args.video_dir, video_limit=args.video_limit, verbose=args.verbose))
    if args.splitting_algorithm == "fixed_stride":
        pipeline.add_stage(
            FixedStrideExtractorStage(
                clip_len_s=args.fixed_stride_split_duration,
                clip_stride_s=args.fixed_stride_split_duration,
                min_clip_length_s=args.fixed_stride_min_clip_length_s,
                limit_clips=args.limit_clips,
            )
        )
    else:
        pipeline.add_stage(VideoFrameExtractionStage(decoder_mode="ffmpeg_cpu", verbose=args.verbose))
        pipeline.add_stage(
            TransNetV2ClipExtractionStage(
                threshold=0.4,
                min_length_s=2.0,
                max_length_s=10.0,
                max_length_mode="stride",
                crop_s=0.5,
                entire_scene_as_clip=True,
                limit_clips=args.limit_clips,
                verbose=args.verbose,
            )
        )
    pipeline.add_stage(
        ClipTranscodingStage(
            num_cpus_per_worker=6.0,
            encoder=args.transcode_encoder,
            encoder_threads=1,
            encode_batch_size=16,
            use_hwaccel=False,
            use_input_bit_rate=False,
            num_clips_per_chunk=32,
            verbose=args.verbose,
        )
    )
    pipeline.add_stage(
        MotionVectorDecodeStage(target_fps=2.0, target_duration_ratio=0.5, num_cpus_per_worker=4.0, verbose=True)
    )
    pipeline.add_stage(
        MotionFilterStage(
            score_only=True,
            global_mean_threshold=0.00098,
            per_patch_min_256_threshold=0.000001,
            motion_filter_batch_size=64,
            num_gpus_per_worker=0,
            verbose=True,
        )
    )
    pipeline.add_stage(
        ClipFrameExtractionStage(
            extraction_policies=("sequence",), target_fps=[1, 2], target_res=(-1, -1), verbose=True
        )
    )
    pipeline.add_stage(PreviewStage(target_fps=1.0, target_height=240, verbose=args.verbose))
    pipeline.add_stage(
        ClipWriterStage(
            output_path=args.output_clip_path,
            input_path=args.video_dir,
            upload_clips=True,
            dry_run=False,
            generate_embeddings=True,
            generate_previews=True,
            generate_captions=False,
            embedding_algorithm="cosmos-embed1",
            caption_models=[],
            enhanced_caption_models=[],
            verbose=args.verbose,
        )
    )
    return pipeline


@pytest.mark.parametrize(
    ("algorithm", "clips"), [("fixed_stride", 2), pytest.param("transnetv2", None, marks=pytest.mark.slow)]
)
def test_the_split_pipeline(tmp_path: Path, algorithm: str, clips: int | None) -> None:
    (tmp_path / "videos").mkdir()
    shutil.copy(FILM, tmp_path / "videos" / "bunny.mp4")
    args = Namespace(
        video_dir=str(tmp_path / "videos"),
        video_limit=-1,
        verbose=True,
        splitting_algorithm=algorithm,
        fixed_stride_split_duration=10.0,
        fixed_stride_min_clip_length_s=2.0,
        limit_clips=0,
        transcode_encoder="libx264",
        output_clip_path=str(tmp_path / "clips"),
    )
    create_video_splitting_pipeline(args).run(LocalExecutor(num_workers=0))
    metas: list[dict[str, Any]] = [
        json.loads(path.read_text()) for path in (tmp_path / "clips" / "metas" / "v0").glob("*.json")
    ]
    assert metas
    assert clips is None or len(metas) == clips
    for meta in metas:
        assert meta["valid"]
        assert meta["cut"] == "encode"
        assert set(meta["motion_score"]) == {"global_mean", "per_patch_min_256"}
        assert (tmp_path / "clips" / "clips" / f"{meta['span_uuid']}.mp4").exists()
        assert (tmp_path / "clips" / "previews" / f"{meta['span_uuid']}.webp").exists()
