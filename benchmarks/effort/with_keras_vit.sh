# From a folder to a tested model with keras-vit. The first line, run again, continues after a crash.
keras-vit train --data photos --output runs/photos
keras-vit evaluate --data photos_test --model runs/photos
keras-vit predict new --model runs/photos
