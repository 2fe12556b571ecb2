s/depth - 1)) ;;/depth - 1)); if ((depth < 0)); then break; fi ;;/
